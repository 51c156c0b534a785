# Runs COMMAND, which must end long before the watchdog's ten minutes, with an exit code that matches CODE and output
# that matches MESSAGE.
execute_process(COMMAND ${COMMAND} TIMEOUT 300 RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(NOT code MATCHES "^(${CODE})$")
  message(FATAL_ERROR "ended with ${code}, expected ${CODE}")
endif()
if(NOT output MATCHES "${MESSAGE}")
  message(FATAL_ERROR "printed nothing like: ${MESSAGE}")
endif()
