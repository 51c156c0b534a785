# Runs COMMAND, which must end within seconds with an exit code that matches CODE and print a match of MESSAGE.
execute_process(COMMAND ${COMMAND} TIMEOUT 30 RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(NOT code MATCHES "^(${CODE})$")
  message(FATAL_ERROR "ended with ${code}, expected ${CODE}")
endif()
if(NOT output MATCHES "${MESSAGE}")
  message(FATAL_ERROR "printed nothing like: ${MESSAGE}")
endif()
