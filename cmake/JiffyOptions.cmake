# How every target of this project is compiled: jiffy_target_options(target).

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  find_program(JIFFY_CCACHE ccache)
  mark_as_advanced(JIFFY_CCACHE)
  if(JIFFY_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${JIFFY_CCACHE})
  endif()
endif()

add_library(jiffy_warnings INTERFACE)
target_compile_options(
  jiffy_warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor $<$<BOOL:${JIFFY_WERROR}>:-Werror>)

# GCC 12 sees an overlap in std::string's own operator+ (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(jiffy_warnings INTERFACE -Wno-restrict)
endif()

set(jiffy_sanitize_flags "")
if(JIFFY_SANITIZE STREQUAL "address")
  set(jiffy_sanitize_flags -fsanitize=address,undefined -fno-sanitize-recover=undefined)
elseif(JIFFY_SANITIZE STREQUAL "thread")
  set(jiffy_sanitize_flags -fsanitize=thread)
elseif(NOT JIFFY_SANITIZE STREQUAL "")
  message(FATAL_ERROR "JIFFY_SANITIZE is '${JIFFY_SANITIZE}'; it may be empty, address or thread.")
endif()
if(jiffy_sanitize_flags)
  # Frame pointers make the reports' stacks complete. GCC documents that a sanitizer makes its
  # maybe-uninitialized warning unreliable.
  target_compile_options(jiffy_warnings INTERFACE -fno-omit-frame-pointer
                                                  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()

if(JIFFY_LTO)
  include(CheckIPOSupported)
  check_ipo_supported(LANGUAGES CXX)
endif()

function(jiffy_target_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF
                                             INTERPROCEDURAL_OPTIMIZATION ${JIFFY_LTO})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:jiffy_warnings>)
  # Public: whoever links a sanitized library must be sanitized too.
  target_compile_options(${target} PUBLIC ${jiffy_sanitize_flags})
  target_link_options(${target} PUBLIC ${jiffy_sanitize_flags})
endfunction()

# For sources whose own speed does not matter: as they are compiled soonest.
function(jiffy_compile_fast target)
  target_compile_options(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O0>)
endfunction()

# For a sanitized build's sources outside the library: lines are enough to read a report, and the address sanitizer sees
# a null pointer's use itself.
function(jiffy_sanitize_lightly target)
  if(JIFFY_SANITIZE)
    target_compile_options(${target} PRIVATE -g1)
  endif()
  if(JIFFY_SANITIZE STREQUAL "address")
    target_compile_options(${target} PRIVATE -fno-sanitize=null,vptr)
  endif()
endfunction()
