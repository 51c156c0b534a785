# Writes the header OUTPUT with the commit of SOURCE, if it has changed: `cmake -DSOURCE= -DOUTPUT= -P`.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --match=
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  set(commit "")
endif()
set(text "#pragma once\n\n// The commit of the sources, with -dirty where they were changed; empty outside a repository.\nnamespace essh::build {\ninline constexpr const char* kCommit = \"${commit}\";\n}\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT "${before}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
endif()
