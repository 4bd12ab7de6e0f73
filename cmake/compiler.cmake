# One language level, one set of warnings, for every target of this project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Dev" FORCE)
endif()
set(CMAKE_CXX_FLAGS_DEV "-O1 -g1")
set(CMAKE_C_FLAGS_DEV "-O1 -g1")
set(CMAKE_CXX_FLAGS_RELEASE "-O3")

add_library(mneme_warnings INTERFACE)
# Designated initializers leave fields to their defaults on purpose, hence no missing-field warning. Clang's -Wconversion
# also warns of every signed subscript, GCC's does not.
target_compile_options(mneme_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wno-sign-conversion -Wshadow -Wno-missing-field-initializers
  -fno-math-errno>)
# Warnings are errors where the tests are built; a user's newer compiler must not stop an installation.
option(MNEME_WERROR "Warnings are errors" ${MNEME_TESTS})
if(MNEME_WERROR)
  target_compile_options(mneme_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
# GCC 13 takes a reference into a caller's object for one into a temporary (GCC bug 107532), and sees the longest vector
# there can be in a heap's loop.
target_compile_options(mneme_warnings INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-dangling-reference;-Wno-aggressive-loop-optimizations>)
# At -O3 GCC 12 sees overflows inside fmt and overlaps inside std::string that cannot be (GCC bug 105651).
target_compile_options(mneme_warnings INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-stringop-overflow;-Wno-restrict>)

if(MNEME_SANITIZE)
  add_compile_options(-fsanitize=${MNEME_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # These checks of UndefinedBehaviorSanitizer double the time of a build (GCC 12: 16.7 s in place of 9 for
  # method_state.cc); what they find beyond AddressSanitizer is left to clang and the fuzzers in ./test --all.
  if(MNEME_SANITIZE MATCHES undefined AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fno-sanitize=null,vptr,object-size,alignment,pointer-overflow)
  endif()
  add_link_options(-fsanitize=${MNEME_SANITIZE})
  # What the sanitizers put between hides from GCC that a variable was set, and at -O0 that a failed check ends the
  # program (ThreadSanitizer; builds without sanitizers keep both warnings).
  target_compile_options(mneme_warnings INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized;-Wno-return-type>)
endif()

if(MNEME_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)  # the code under test must show libFuzzer what it covers
endif()

# Paths below the sources count as relative, so that checkouts in different folders share what was compiled.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
