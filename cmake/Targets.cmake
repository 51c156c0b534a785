add_library(essh_options INTERFACE)
target_include_directories(essh_options INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
target_link_libraries(essh_options INTERFACE Threads::Threads fmt::fmt)
target_compile_options(essh_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror>
  # libm's errno is never read; contraction is fixed, so that every build on one machine rounds the same way.
  $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno -ffp-contract=fast>
  # False alarms of GCC 12 inside std::string: as a precompiled header it is no longer a system header.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds -Wno-restrict -Wno-stringop-overflow>
  # Without this, GCC 13 leaves some sums of products unfused on some processors, differently for vectors and scalars.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=avoid-fma-max-bits=0>)
if(ESSH_NATIVE)
  target_compile_options(essh_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
endif()
if(ESSH_CUDA_QUICK AND ESSH_HAVE_FAST_COMPILE)
  # Not for targets with the property ESSH_ALWAYS_OPTIMISED: ptxas would report every tensor-core product that such code
  # does not overlap with others.
  target_compile_options(essh_options INTERFACE
    $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<NOT:$<BOOL:$<TARGET_PROPERTY:ESSH_ALWAYS_OPTIMISED>>>>:--Ofast-compile=max>)
endif()
if(ESSH_SANITIZE)
  # Not for targets with the property ESSH_UNSANITIZED.
  target_compile_options(essh_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:$<TARGET_PROPERTY:ESSH_UNSANITIZED>>>>:-fsanitize=${ESSH_SANITIZE}
    -fno-sanitize-recover=all>)
  target_link_options(essh_options INTERFACE -fsanitize=${ESSH_SANITIZE})
endif()

# Parsed once for the whole tree, which halves the time of a small source. System headers only, so that no edit of ours
# rebuilds everything; sources still include what they use (the debug preset builds without this). A compiler may reject
# the precompiled header for another optimisation level, and then parses the headers again.
set(CMAKE_PCH_WARN_INVALID OFF)
add_library(essh_precompiled OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
target_link_libraries(essh_precompiled PRIVATE essh_options)
target_precompile_headers(essh_precompiled PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:${PROJECT_SOURCE_DIR}/cmake/precompiled.h>)
# essh_cold(TARGET): for targets without hot loops. -O1 takes two thirds of the compile time. A precompiled header of its
# own, because GCC 12 compiles with the options of the header, and GCC 13 on x86 rejects one made with a higher level.
add_library(essh_precompiled_cold OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
target_link_libraries(essh_precompiled_cold PRIVATE essh_options)
target_precompile_headers(essh_precompiled_cold PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:${PROJECT_SOURCE_DIR}/cmake/precompiled.h>)
function(essh_optimise_little target)
  if(CMAKE_BUILD_TYPE STREQUAL Release)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endfunction()
essh_optimise_little(essh_precompiled_cold)
function(essh_cold target)
  essh_optimise_little(${target})
  if(CMAKE_BUILD_TYPE STREQUAL Release)
    target_precompile_headers(${target} REUSE_FROM essh_precompiled_cold)
  else()
    target_precompile_headers(${target} REUSE_FROM essh_precompiled)
  endif()
endfunction()

# essh_light(TARGET): for tests that compute little. -O1; with a sanitizer -O0, which halves the compile time again.
function(essh_light target)
  essh_optimise_little(${target})
  if(ESSH_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# essh_unity(TARGET): with ESSH_UNITY, compiles up to forty sources as one, so that shared templates are compiled once.
# Sources of one folder must therefore not define the same name twice, not even in anonymous namespaces. Sources with
# options of their own are compiled alone.
function(essh_unity target)
  if(ESSH_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 40)
    # GCC takes a source that is included by another file for a header.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# essh_cuda_unity(VARIABLE ALONE...): with ESSH_UNITY, replaces the .cu files in this list, except those named ALONE, by
# sources that include six of them: a small one takes 5 s, nearly all of it for headers. CMake does this itself from
# 3.31 on.
function(essh_cuda_unity variable)
  if(NOT ESSH_UNITY)
    return()
  endif()
  set(sources "")
  set(included 0)
  foreach(source IN LISTS ${variable})
    get_filename_component(stem ${source} NAME_WE)
    if(NOT source MATCHES "[.]cu$" OR stem IN_LIST ARGN)
      list(APPEND sources ${source})
    else()
      math(EXPR batch "${included} / 6")
      math(EXPR included "${included} + 1")
      string(APPEND text_${batch} "#include \"${source}\"\n")
    endif()
  endforeach()
  if(included GREATER 0)
    foreach(number RANGE ${batch})
      set(file ${CMAKE_CURRENT_BINARY_DIR}/unity_${number}.cu)
      file(CONFIGURE OUTPUT ${file} CONTENT "${text_${number}}" @ONLY)
      list(APPEND sources ${file})
    endforeach()
  endif()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# essh_library(FOLDER [COLD names...] [ALONE names...] [TILES names...] [LINK targets...]): all sources of src/essh/FOLDER as one static
# library. COLD sources (or ALL) are compiled with -O1. ALONE sources are not compiled together with others. TILES are
# sources of register tiles, written in an order that fits the registers: GCC's first scheduling pass would reorder and
# spill them. They have no precompiled header, because GCC would silently use the options of the header.
# SM90A sources, which are ALONE too, use instructions that only sm_90 has, not its successors: where sm_90 is among the
# architectures, they are compiled for sm_90a.
# With a sanitizer, the libraries in ESSH_UNHURRIED have no optimisation, which takes 40 % less time to compile: what
# tests wait for is in other libraries.
set(ESSH_UNHURRIED plot serve train)
function(essh_library name)
  cmake_parse_arguments(ARG "" "" "COLD;ALONE;TILES;SM90A;LINK" ${ARGN})
  list(APPEND ARG_ALONE ${ARG_SM90A})
  file(GLOB sources CONFIGURE_DEPENDS *.cpp cpu/*.cpp)
  if(ESSH_WITH_CUDA)
    file(GLOB cuda_sources CONFIGURE_DEPENDS cuda/*.cpp cuda/*.cu)
    essh_cuda_unity(cuda_sources ${ARG_ALONE})
    list(APPEND sources ${cuda_sources})
  endif()
  if(NOT sources)
    add_library(essh_${name} INTERFACE)
    target_link_libraries(essh_${name} INTERFACE essh_options ${ARG_LINK})
    return()
  endif()
  set(cold_sources "")
  set(tile_sources "")
  set(sm90a_sources "")
  foreach(source IN LISTS sources)
    get_filename_component(stem ${source} NAME_WE)
    if(stem IN_LIST ARG_ALONE AND NOT stem IN_LIST ARG_TILES)
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
    if(stem IN_LIST ARG_COLD AND CMAKE_BUILD_TYPE STREQUAL Release)
      list(APPEND cold_sources ${source})
    endif()
    if(stem IN_LIST ARG_TILES AND source MATCHES "cpp$")
      list(APPEND tile_sources ${source})
    endif()
    if(stem IN_LIST ARG_SM90A AND source MATCHES "cu$")
      list(APPEND sm90a_sources ${source})
    endif()
  endforeach()
  # Objects of their own for the cold sources: a precompiled header is made for one level of optimisation.
  if(cold_sources)
    list(REMOVE_ITEM sources ${cold_sources})
    add_library(essh_${name}_cold OBJECT ${cold_sources})
    target_link_libraries(essh_${name}_cold PRIVATE essh_options ${ARG_LINK})
    essh_cold(essh_${name}_cold)
    essh_unity(essh_${name}_cold)
    list(APPEND sources $<TARGET_OBJECTS:essh_${name}_cold>)
  endif()
  if(tile_sources)
    list(REMOVE_ITEM sources ${tile_sources})
    add_library(essh_${name}_tiles OBJECT ${tile_sources})
    target_link_libraries(essh_${name}_tiles PRIVATE essh_options ${ARG_LINK})
    target_compile_options(essh_${name}_tiles PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fno-schedule-insns>)
    essh_unity(essh_${name}_tiles)
    list(APPEND sources $<TARGET_OBJECTS:essh_${name}_tiles>)
  endif()
  if(sm90a_sources)
    list(REMOVE_ITEM sources ${sm90a_sources})
    add_library(essh_${name}_sm90a OBJECT ${sm90a_sources})
    target_link_libraries(essh_${name}_sm90a PRIVATE essh_options ${ARG_LINK})
    list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^90(-real)?$" "90a" OUTPUT_VARIABLE architectures)
    set_target_properties(essh_${name}_sm90a PROPERTIES CUDA_ARCHITECTURES "${architectures}" ESSH_ALWAYS_OPTIMISED ON)
    list(APPEND sources $<TARGET_OBJECTS:essh_${name}_sm90a>)
  endif()
  add_library(essh_${name} STATIC ${sources})
  target_link_libraries(essh_${name} PUBLIC essh_options ${ARG_LINK})
  if(ARG_COLD STREQUAL ALL)
    essh_cold(essh_${name})
  else()
    target_precompile_headers(essh_${name} REUSE_FROM essh_precompiled)
  endif()
  if(ESSH_SANITIZE AND name IN_LIST ESSH_UNHURRIED)
    target_compile_options(essh_${name} PRIVATE -O0)
  endif()
  essh_unity(essh_${name})
endfunction()

# essh_test(FOLDER [HEAVY] [MEASURES_MEMORY] [LINK targets...]): tests/FOLDER/*_test.cpp as one program and one CTest entry
# (kernels_cuda_test for kernels/cuda), or as a part of sanitized_test for the folders in ESSH_SANITIZED. HEAVY tests
# compute much themselves and are fully optimised. New memory is NaN, except where it is measured.
function(essh_test folder)
  cmake_parse_arguments(ARG "HEAVY;MEASURES_MEMORY" "" "LINK" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.cpp)
  if(sources)
    if(folder IN_LIST ESSH_SANITIZED)
      add_library(${name}_test OBJECT ${sources})
    else()
      add_executable(${name}_test ${sources})
      add_test(NAME ${name} COMMAND ${name}_test)
      if(NOT ARG_MEASURES_MEMORY)
        set_tests_properties(${name} PROPERTIES ENVIRONMENT ESSH_FILL_MEMORY=1)
      endif()
      add_dependencies(essh_tests ${name}_test)
    endif()
    target_include_directories(${name}_test PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name}_test PRIVATE ${ARG_LINK} GTest::gtest_main)
    essh_unity(${name}_test)
    if(ARG_HEAVY)
      target_precompile_headers(${name}_test REUSE_FROM essh_precompiled)
    else()
      target_precompile_headers(${name}_test REUSE_FROM essh_precompiled_tests)
      essh_light(${name}_test)
    endif()
  endif()
endfunction()
