add_library(essh_options INTERFACE)
target_include_directories(essh_options INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
target_link_libraries(essh_options INTERFACE Threads::Threads fmt::fmt)
target_compile_options(essh_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror>
  # errno of libm is never read, and contraction is fixed so that every build of one machine rounds alike.
  $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno -ffp-contract=fast>
  # GCC 12 finds these in std::string itself, once its header is precompiled and no longer a system header.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds -Wno-restrict -Wno-stringop-overflow>
  # GCC 13 otherwise leaves sums of products unfused for some processors, vectors and lone elements differently.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=avoid-fma-max-bits=0>)
if(ESSH_NATIVE)
  target_compile_options(essh_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
endif()
if(ESSH_SANITIZE)
  target_compile_options(essh_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${ESSH_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  target_link_options(essh_options INTERFACE -fsanitize=${ESSH_SANITIZE})
endif()

# Parsed once for the whole tree: half of the time of a small source. Headers of the system only, so that no edit here
# builds everything again; a source still includes what it uses (the debug preset builds without this).
# A compiler may refuse it to a source with another level of optimisation, and parses the headers again.
set(CMAKE_PCH_WARN_INVALID OFF)
add_library(essh_precompiled OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
target_link_libraries(essh_precompiled PRIVATE essh_options)
target_precompile_headers(essh_precompiled PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:${PROJECT_SOURCE_DIR}/cmake/precompiled.h>)
# For targets without a loop worth optimising: -O1 takes two thirds of the time, and GCC 13 on x86 refuses a header that was
# precompiled with more. essh_cold(TARGET) makes a target one of them.
function(essh_cold target)
  if(CMAKE_BUILD_TYPE STREQUAL Release)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endfunction()
add_library(essh_precompiled_cold OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
target_link_libraries(essh_precompiled_cold PRIVATE essh_options)
target_precompile_headers(essh_precompiled_cold PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:${PROJECT_SOURCE_DIR}/cmake/precompiled.h>)
essh_cold(essh_precompiled_cold)

# Tests that compute little themselves: -O1, and -O0 with a sanitizer, which takes half of the time again.
function(essh_light target)
  essh_cold(${target})
  if(ESSH_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# essh_unity(TARGET): with ESSH_UNITY, compiles several sources at a time; the templates they share are then compiled once. Sources of one
# folder therefore must not define the same name twice, not even in anonymous namespaces.
function(essh_unity target)
  if(ESSH_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10)
    # GCC takes a source for a header when another file includes it.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# essh_library(FOLDER [SINGLY] [COLD names...] [LINK targets...]): every source of src/essh/FOLDER as one static library. COLD sources
# (or ALL) are compiled with -O1. With a sanitizer and ESSH_UNITY, several sources are compiled as one unless SINGLY.
function(essh_library name)
  cmake_parse_arguments(ARG "SINGLY" "" "COLD;LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cpp cpu/*.cpp)
  if(ESSH_WITH_CUDA)
    file(GLOB cuda_sources CONFIGURE_DEPENDS cuda/*.cpp cuda/*.cu)
    list(APPEND sources ${cuda_sources})
  endif()
  if(sources)
    add_library(essh_${name} STATIC ${sources})
    target_link_libraries(essh_${name} PUBLIC essh_options ${ARG_LINK})
    if(ESSH_SANITIZE AND NOT ARG_SINGLY)
      essh_unity(essh_${name})
    endif()
    if(ARG_COLD STREQUAL ALL AND CMAKE_BUILD_TYPE STREQUAL Release)
      target_precompile_headers(essh_${name} REUSE_FROM essh_precompiled_cold)
      essh_cold(essh_${name})
      return()
    endif()
    target_precompile_headers(essh_${name} REUSE_FROM essh_precompiled)
    if(CMAKE_BUILD_TYPE STREQUAL Release)
      foreach(source IN LISTS sources)
        get_filename_component(stem ${source} NAME_WE)
        if(stem IN_LIST ARG_COLD)
          set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -O1)
        endif()
      endforeach()
    endif()
  else()
    add_library(essh_${name} INTERFACE)
    target_link_libraries(essh_${name} INTERFACE essh_options ${ARG_LINK})
  endif()
endfunction()

# essh_test(FOLDER [HEAVY] [SINGLY] [LINK targets...]): tests/FOLDER/*_test.cpp as one program and one CTest entry, kernels_cuda_test for
# kernels/cuda. Only HEAVY tests compute much themselves and are compiled with full optimisation.
function(essh_test folder)
  cmake_parse_arguments(ARG "HEAVY;SINGLY" "" "LINK" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.cpp)
  if(sources)
    add_executable(${name}_test ${sources})
    target_include_directories(${name}_test PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name}_test PRIVATE ${ARG_LINK} GTest::gtest_main)
    if(NOT ARG_SINGLY)
      essh_unity(${name}_test)
    endif()
    if(ARG_HEAVY)
      target_precompile_headers(${name}_test REUSE_FROM essh_precompiled)
    else()
      target_precompile_headers(${name}_test REUSE_FROM essh_precompiled_tests)
      essh_light(${name}_test)
    endif()
    add_test(NAME ${name} COMMAND ${name}_test)
    add_dependencies(essh_tests ${name}_test)
  endif()
endfunction()
