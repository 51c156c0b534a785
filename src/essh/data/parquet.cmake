# Parquet through Apache Arrow: an installed one, or the copy inside the pyarrow package of the first Python found.
option(ESSH_PARQUET "read Parquet when Apache Arrow is found" ON)

set(parquet_target "")
set(parquet_origin "Apache Arrow not found")
if(NOT ESSH_PARQUET)
  set(parquet_origin "ESSH_PARQUET=OFF")
elseif(ESSH_SANITIZE)
  # Arrow is not instrumented: containers passed between both give false alarms.
  set(parquet_origin "not with sanitizers")
else()
  find_package(Parquet QUIET)
  if(TARGET Parquet::parquet_shared)
    set(parquet_target Parquet::parquet_shared)
    set(parquet_origin "Apache Arrow ${Parquet_VERSION}")
  else()
    find_package(Python3 QUIET COMPONENTS Interpreter)
    if(Python3_FOUND)
      execute_process(
        COMMAND ${Python3_EXECUTABLE} -c
                "import pyarrow as p, glob; d = p.get_library_dirs()[0]; print(';'.join([p.get_include(), d, p.__version__, glob.glob(d + '/libarrow.so.*')[0], glob.glob(d + '/libparquet.so.*')[0]]))"
        OUTPUT_VARIABLE pyarrow OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE pyarrow_status)
      if(pyarrow_status EQUAL 0)
        list(GET pyarrow 0 pyarrow_include)
        list(GET pyarrow 1 pyarrow_folder)
        list(GET pyarrow 2 pyarrow_version)
        list(GET pyarrow 3 4 pyarrow_libraries)
        # Older wheels use another ABI of the C++ library; only linking tells.
        file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/parquet_check.cpp
             "#include <parquet/file_reader.h>\nint main() { return parquet::ParquetFileReader::OpenFile(\"\") ? 0 : 1; }\n")
        try_compile(parquet_links ${CMAKE_CURRENT_BINARY_DIR}/parquet_check ${CMAKE_CURRENT_BINARY_DIR}/parquet_check.cpp
          CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${pyarrow_include} LINK_LIBRARIES ${pyarrow_libraries}
          CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
        if(parquet_links)
          add_library(essh_pyarrow INTERFACE)
          target_include_directories(essh_pyarrow SYSTEM INTERFACE ${pyarrow_include})
          target_link_libraries(essh_pyarrow INTERFACE ${pyarrow_libraries})
          target_link_options(essh_pyarrow INTERFACE -Wl,-rpath,${pyarrow_folder})
          set(parquet_target essh_pyarrow)
          set(parquet_origin "Apache Arrow of pyarrow ${pyarrow_version}")
        else()
          set(parquet_origin "pyarrow ${pyarrow_version} does not link with this compiler")
        endif()
      endif()
    endif()
  endif()
endif()

if(parquet_target)
  message(STATUS "essh: ${parquet_origin}: reading .parquet files")
  target_link_libraries(essh_data PRIVATE ${parquet_target})
  target_compile_definitions(essh_data PRIVATE ESSH_HAVE_PARQUET=1)
else()
  message(STATUS "essh: ${parquet_origin}, off: reading .parquet files")
  target_compile_definitions(essh_data PRIVATE ESSH_HAVE_PARQUET=0)
endif()
