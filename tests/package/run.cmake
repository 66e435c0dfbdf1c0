# cmake -DWAY=installed|subdirectory ... -P run.cmake: build a small consumer of jiffy and run it.
#
#   installed      install the existing build into a prefix of its own; the consumer uses find_package
#   subdirectory   the consumer uses add_subdirectory, with jiffy as a shared library; it then installs
#                  itself, and a second consumer finds that shared jiffy with find_package
#
# Nothing is written outside WORK_DIR, which is emptied first.

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Configures, builds and runs the consumer in WORK_DIR/name; further arguments go to the configuration.
function(consume name)
  set(dir ${WORK_DIR}/${name})
  run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${dir} -G ${GENERATOR}
      -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${CXX_LAUNCHER} -DCMAKE_BUILD_TYPE=Debug
      -DJIFFY_VERSION=${VERSION} ${ARGN})
  run(${CMAKE_COMMAND} --build ${dir})
  run(${dir}/consumer)
endfunction()

# The program and the gdb script are part of the installation.
function(check_prefix prefix)
  foreach(file IN ITEMS include/jiffy/jiffy.h share/jiffy/jiffy-gdb.py ${ARGN})
    if(NOT EXISTS ${prefix}/${file})
      message(FATAL_ERROR "${file} was not installed in ${prefix}")
    endif()
  endforeach()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
set(prefix ${WORK_DIR}/prefix)

if(WAY STREQUAL "installed")
  run(${CMAKE_COMMAND} --install ${JIFFY_BINARY_DIR} --prefix ${prefix})
  file(GLOB built_program ${JIFFY_BINARY_DIR}/bench/jiffy/jiffy)
  if(built_program)
    check_prefix(${prefix} bin/jiffy)
    run(${prefix}/bin/jiffy --help)
  else()
    check_prefix(${prefix})
  endif()
  consume(consumer -DCMAKE_PREFIX_PATH=${prefix})
else()
  consume(consumer -DJIFFY_SUBDIRECTORY=${JIFFY_SOURCE_DIR} -DBUILD_SHARED_LIBS=ON)
  run(${CMAKE_COMMAND} --install ${WORK_DIR}/consumer --prefix ${prefix})
  check_prefix(${prefix})
  consume(second -DCMAKE_PREFIX_PATH=${prefix})
endif()
