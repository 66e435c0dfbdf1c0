# jiffy_add_test(name label timeout_seconds command...): a CTest test with the environment that the
# sanitizers need. A timeout of 0 leaves the timeout to the caller of CTest; others are tripled under a sanitizer.

set(jiffy_test_environment
    "ASAN_OPTIONS=detect_stack_use_after_return=0:detect_leaks=1"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")

# Sanitizer runtimes older than 2024 do not find room for their shadow memory where the kernel
# randomises addresses by more than 28 bits (Ubuntu 24.04 uses 32), so the tests switch that off.
set(jiffy_test_launcher "")
if(NOT JIFFY_SANITIZE STREQUAL "" AND EXISTS /proc/sys/vm/mmap_rnd_bits)
  file(READ /proc/sys/vm/mmap_rnd_bits mmap_rnd_bits)
  if(mmap_rnd_bits GREATER 28)
    set(jiffy_test_launcher setarch x86_64 --addr-no-randomize)
  endif()
endif()

function(jiffy_add_test name label timeout)
  add_test(NAME ${name} COMMAND ${jiffy_test_launcher} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS ${label} ENVIRONMENT "${jiffy_test_environment}")
  if(timeout GREATER 0 AND NOT JIFFY_SANITIZE STREQUAL "")
    math(EXPR timeout "3 * ${timeout}")
  endif()
  if(timeout GREATER 0)
    set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout})
  endif()
endfunction()
