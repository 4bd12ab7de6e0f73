# Half of what these rooms and their tests take to compile under sanitizers is optimising what runs once: options,
# assertions. What computes keeps its optimiser: kernels, references, contracts. Without sanitizers a third of what tests
# and the command line take is -O3 in place of -O1.
set(MNEME_SPARED cli checkpoint engine eval grammar house recipes server tokenizer)
function(mneme_spare_optimiser target)
  get_filename_component(room ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(MNEME_SANITIZE AND NOT MNEME_FUZZ AND room IN_LIST MNEME_SPARED)
    target_compile_options(${target} PRIVATE -O0)
  elseif(NOT MNEME_SANITIZE AND NOT MNEME_FUZZ)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endfunction()

# mneme_room(NAME SOURCES a.cc ... [USES room ...] [PUBLIC target ...] [PRIVATE target ...])
# One folder of src/ as a static library mneme_NAME. USES names rooms above it, PUBLIC and PRIVATE other targets.
function(mneme_room name)
  cmake_parse_arguments(R "" "" "SOURCES;USES;PUBLIC;PRIVATE" ${ARGN})
  add_library(mneme_${name} STATIC ${R_SOURCES})
  target_include_directories(mneme_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  list(TRANSFORM R_USES PREPEND mneme_)
  target_link_libraries(mneme_${name} PUBLIC ${R_USES} ${R_PUBLIC} PRIVATE mneme_warnings ${R_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY MNEME_ROOMS mneme_${name})
endfunction()

# mneme_test(NAME SOURCES a.cc ... USES room ... [SHARDS n]): one GoogleTest program, its tests known to ctest by their own
# names. With SHARDS it runs n times, each time every n-th of its tests (NAME.1, ...): for programs of hundreds of cases
# that share nothing, where starting a process for each takes longer than the cases do.
function(mneme_test name)
  cmake_parse_arguments(T "" "TIMEOUT;SHARDS" "SOURCES;USES;LIBS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  add_executable(${name} ${T_SOURCES})
  list(TRANSFORM T_USES PREPEND mneme_)
  target_link_libraries(${name} PRIVATE ${T_USES} ${T_LIBS} mneme_warnings GTest::gmock GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_compile_definitions(${name} PRIVATE MNEME_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  mneme_spare_optimiser(${name})
  if(NOT T_SHARDS)
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT ${T_TIMEOUT})
    return()
  endif()
  # Two threads that wait for each other (tests/test_threads.h) want two cores.
  set(processors 2)
  if(MNEME_SANITIZE MATCHES address)
    set(processors 1)
  endif()
  foreach(shard RANGE 1 ${T_SHARDS})
    math(EXPR index "${shard} - 1")
    add_test(NAME ${name}.${shard} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name}.${shard} PROPERTIES TIMEOUT 900 PROCESSORS ${processors}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${T_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# mneme_fuzzer(NAME SOURCES a.cc USES room ...): one libFuzzer program.
function(mneme_fuzzer name)
  cmake_parse_arguments(T "" "" "SOURCES;USES" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  list(TRANSFORM T_USES PREPEND mneme_)
  target_link_libraries(${name} PRIVATE ${T_USES} mneme_warnings)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
