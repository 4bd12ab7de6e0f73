# Functions that declare targets: rooms of the library, applications, tests, fuzzers.

# The optimiser is half of what option parsing and assertions cost under sanitizers, where they run once. Rooms that
# compute keep it: ops, selection, methods, references, contracts. Without sanitizers tests and applications take -O1.
# LOWERED rooms (src/server: 17 s in place of 26 at -O3), what reads files and all of apps/ go without it too (a third of
# their time).
set(MNEME_UNOPTIMISED_SANITIZED apps engine formats golden house recipes server text)
set(MNEME_UNOPTIMISED_ROOMS "^(apps/|formats)")
function(mneme_lower_optimisation target room)
  string(REGEX REPLACE "/.*" "" top ${room})
  if(MNEME_SANITIZE AND NOT MNEME_FUZZ AND top IN_LIST MNEME_UNOPTIMISED_SANITIZED)
    target_compile_options(${target} PRIVATE -O0)
  elseif(NOT MNEME_SANITIZE AND NOT MNEME_FUZZ)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endfunction()

# Up to 24 sources a translation unit: they share the instantiations of JSON, CLI11, fmt and the containers, which take two
# thirds of the time under sanitizers (src/recipes, 18 sources: 24.6 s alone, 8.6 s in batches of eight; apps/mneme 60 s in
# five batches, LATER in two). A changed file recompiles its batch.
# Highway's sources include themselves once a target, generated tables gain nothing: both stay alone.
option(MNEME_UNITY "Compile the sources of a target in batches: for builds from scratch" OFF)
# GCC 12 collects its garbage in batches of this size until they take 2 GB: 6 to 20 % of the time of a batch without.
if(MNEME_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-expand=1000>
    $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=2000000>)
endif()
function(mneme_unity target)
  if(NOT MNEME_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(path ${source} ABSOLUTE)
    if(source MATCHES "/generated/" OR NOT EXISTS ${path})
      set(alone "generated")
    else()
      file(STRINGS ${path} alone REGEX "foreach_target\\.h|^// Unity: alone" LIMIT_COUNT 1)
    endif()
    if(alone)
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
  # A source that is included is no header: its classes may have members of its unnamed namespace.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# Kernels under AddressSanitizer. With use-after-scope an accumulator in an array that a lambda takes by reference is
# checked at every access: attention over f16 keys takes 28.6 s in place of 4.5 for a prompt of 5,011 tokens, gemm_tile.cc
# 22 s to compile in place of 6 (GCC 12, one thread). Accesses through pointers are checked as everywhere.
function(mneme_kernels target)
  get_target_property(type ${target} TYPE)
  if(MNEME_SANITIZE MATCHES address AND NOT type STREQUAL "INTERFACE_LIBRARY")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-address-use-after-scope>)
  endif()
endfunction()

# Highway's sources compile once for each of SSSE3, SSE4, AVX2 and AVX-512 and once without vectors. HERE leaves the first
# and, of the last two, what this CPU does not take: gemm_codes.cc compiles in 7.6 s in place of 14.9. The program still
# runs everywhere, without vectors where its set is missing.
set(MNEME_KERNELS ALL CACHE STRING "Instruction sets of CPU kernels: ALL, or HERE for this machine's")
set_property(CACHE MNEME_KERNELS PROPERTY STRINGS ALL HERE)
function(mneme_kernel_targets target)
  if(NOT MNEME_KERNELS MATCHES "^(ALL|HERE)$")
    message(FATAL_ERROR "MNEME_KERNELS: expected ALL or HERE, found ${MNEME_KERNELS}")
  endif()
  if(NOT MNEME_KERNELS STREQUAL "HERE" OR MNEME_SANITIZE OR NOT EXISTS /proc/cpuinfo)
    return()
  endif()
  file(STRINGS /proc/cpuinfo flags REGEX "^flags" LIMIT_COUNT 1)
  string(REPLACE " " ";" flags "${flags}")
  set(avx512 avx512f avx512vl avx512bw avx512dq avx512cd)
  set(avx2 avx2 fma f16c bmi1 bmi2)
  list(REMOVE_ITEM avx512 ${flags})
  list(REMOVE_ITEM avx2 ${flags})
  if(NOT avx512)
    set(others "HWY_AVX2")
  elseif(NOT avx2)
    set(others "HWY_AVX3|HWY_AVX3_DL")
  else()
    return()  # all of them: an older CPU, another architecture
  endif()
  target_compile_definitions(${target} INTERFACE
    "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|${others}|HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128|HWY_RVV)")
endfunction()

# mneme_sources(OUT FOLDER EXCLUDED...): C++ and CUDA files of a folder and its subfolders, less those of EXCLUDED folders.
# *_cuda.cc and *.cu need CUDA.
function(mneme_sources out folder)
  file(GLOB_RECURSE found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc ${PROJECT_SOURCE_DIR}/${folder}/*.cu)
  foreach(excluded IN LISTS ARGN)
    list(FILTER found EXCLUDE REGEX "^${PROJECT_SOURCE_DIR}/${excluded}/")
  endforeach()
  if(NOT MNEME_HAVE_CUDA)
    list(FILTER found EXCLUDE REGEX "(_cuda\\.cc|\\.cu)$")
  endif()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# The standard library, fmt and the intrinsics take longer to parse than most sources do: precompiled once, and under
# sanitizers once more at -O0: the header of -O3 serves -O1, which compiles to the same code with it as without (GCC
# 12). JSON stays out: functions of its header instantiate templates at the end of every source that has it, 0.4 s each,
# as long as parsing it takes. With it and without the intrinsics, 48 Highway sources took 0.8 s longer each.
# A library, so that its code generation options are those of rooms.
set(MNEME_STANDARD_HEADERS <algorithm> <atomic> <bit> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque>
  <filesystem> <fstream> <functional> <map> <memory> <mutex> <numeric> <optional> <random> <set> <span> <string>
  <string_view> <thread> <unordered_map> <utility> <variant> <vector>)
function(mneme_source_headers target headers)
  # At -O3 GCC 12 warns of what std::string does in a precompiled header: not where such warnings are errors.
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR (MNEME_WERROR AND NOT MNEME_SANITIZE))
    return()
  endif()
  if(NOT TARGET ${headers})
    file(WRITE ${PROJECT_BINARY_DIR}/generated/${headers}.cc "")
    add_library(${headers} STATIC EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/generated/${headers}.cc)
    target_link_libraries(${headers} PRIVATE mneme_warnings fmt::fmt Threads::Threads)
    if(headers MATCHES "unoptimised$")
      mneme_lower_optimisation(${headers} apps)
    endif()
    set(intrinsics)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
      set(intrinsics <immintrin.h>)
    endif()
    target_precompile_headers(${headers} PRIVATE <fmt/format.h> ${MNEME_STANDARD_HEADERS} ${intrinsics})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${headers})
  # GCC 12 warns of undefined registers inside the intrinsics, which it knows to be a system header's otherwise.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-uninitialized;-Wno-maybe-uninitialized>)
endfunction()

# mneme_room(NAME [LOWERED | COLD] [ALONE] [SOURCES file ...] [EXCLUDE folder ...] [USES room ...] [PUBLIC target ...] [PRIVATE target ...])
# The folder src/NAME (apps/... for applications) with all its sources as a static library, mneme_NAME with / as _.
# USES names rooms above it in cmake/rooms.cmake; PUBLIC and PRIVATE name other targets. Subfolders that are rooms of
# their own are left out; LOWERED sets mneme_lower_optimisation, COLD only without sanitizers (templates of chats compile in
# 5.3 s in place of 9.5), ALONE leaves mneme_unity out (kernels that share names). A room a/b also joins the group
# mneme_a, which tests use to link all of a.
function(mneme_room name)
  cmake_parse_arguments(R "LOWERED;COLD;ALONE" "" "SOURCES;EXCLUDE;USES;PUBLIC;PRIVATE" ${ARGN})
  set(folder src/${name})
  if(name MATCHES "^apps/")
    set(folder ${name})
  endif()
  get_property(rooms GLOBAL PROPERTY MNEME_ROOM_FOLDERS)
  if(NOT folder IN_LIST rooms)
    message(FATAL_ERROR "cmake/rooms.cmake: ${folder} is not in MNEME_ROOMS")
  endif()
  set(nested ${R_EXCLUDE})
  foreach(other IN LISTS rooms)
    if(other MATCHES "^${folder}/")
      list(APPEND nested ${other})
    endif()
  endforeach()
  mneme_sources(sources ${folder} ${nested})
  string(REPLACE "/" "_" target mneme_${name})
  list(TRANSFORM R_USES REPLACE "/" "_")
  list(TRANSFORM R_USES PREPEND mneme_)
  list(APPEND sources ${R_SOURCES})
  if(NOT sources)
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(${target} INTERFACE ${R_USES} ${R_PUBLIC})
  else()
    add_library(${target} STATIC ${sources})
    target_include_directories(${target} PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
    target_link_libraries(${target} PUBLIC ${R_USES} ${R_PUBLIC} PRIVATE mneme_warnings ${R_PRIVATE})
    if(NOT R_ALONE)
      mneme_unity(${target})
    endif()
    set(headers mneme_source_headers)
    if(R_LOWERED OR (R_COLD AND NOT MNEME_SANITIZE) OR (MNEME_SANITIZE AND name MATCHES "${MNEME_UNOPTIMISED_ROOMS}"))
      mneme_lower_optimisation(${target} apps)
      if(MNEME_SANITIZE)
        set(headers mneme_source_headers_unoptimised)
      endif()
    endif()
    if(R_USES OR R_PUBLIC)  # a room without fmt has other definitions than the precompiled headers
      mneme_source_headers(${target} ${headers})
    endif()
  endif()
  if(name MATCHES "^(ops|selection)/")
    mneme_kernels(${target})
    string(REGEX REPLACE "/.*" "" group mneme_${name})
    if(NOT TARGET ${group})
      add_library(${group} INTERFACE)
    endif()
    target_link_libraries(${group} INTERFACE ${target})
  endif()
endfunction()

# mneme_backend(ROOM NAME): whoever links the room also links what registers itself by MNEME_REGISTER_BACKEND(NAME, ...).
function(mneme_backend room name)
  target_link_options(mneme_${room} INTERFACE LINKER:-u,mneme_backend_${name})
endfunction()

# GoogleTest, GoogleMock and JSON take longer to parse than most tests do: precompiled once for each optimisation level.
# An executable, so that its code generation options are those of the tests that take it.
function(mneme_test_headers target room)
  get_target_property(options ${target} COMPILE_OPTIONS)
  set(headers mneme_test_headers)
  if(options AND "-O0" IN_LIST options)
    set(headers mneme_test_headers_unoptimised)
  endif()
  if(NOT TARGET ${headers})
    file(WRITE ${PROJECT_BINARY_DIR}/generated/${headers}.cc "int main() {}\n")
    add_executable(${headers} ${PROJECT_BINARY_DIR}/generated/${headers}.cc)
    target_link_libraries(${headers} PRIVATE mneme_warnings fmt::fmt GTest::gmock GTest::gtest_main nlohmann_json::nlohmann_json)
    mneme_lower_optimisation(${headers} ${room})
    target_precompile_headers(${headers} PRIVATE
      <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h> <nlohmann/json.hpp>
      <algorithm> <cmath> <cstdint> <filesystem> <fstream> <memory> <random> <span> <string> <vector>)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${headers})
  # In a precompiled header GCC 12 warns of std::string's own bounds, which it knows to be a system header's otherwise.
  target_compile_options(${target} PRIVATE -Wno-array-bounds)
endfunction()

# Lesser instruction sets than this CPU's, as MNEME_CPU_ISA names them: forcing any other would change nothing.
function(mneme_lesser_isas out)
  set(lesser)
  if(EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo flags REGEX "^flags" LIMIT_COUNT 1)
    foreach(pair avx2:avx512f avx512:avx512_vnni avx512_vnni:avx512_bf16 avx512_bf16:amx_bf16)
      string(REPLACE ":" ";" pair ${pair})
      list(GET pair 0 isa)
      list(GET pair 1 next)
      if(flags MATCHES " ${next}( |$)")
        list(APPEND lesser ${isa})
      endif()
    endforeach()
  endif()
  set(${out} ${lesser} PARENT_SCOPE)
endfunction()

# mneme_test(NAME [ALONE] SOURCES a.cc ... USES room ... [SHARDS n] [PROCESSORS n] [TIMEOUT seconds] [ISAS isa ...])
# One GoogleTest program, its tests known to ctest by their own names.
#   SHARDS      It runs n times, each time every n-th of its tests (NAME.1, ...): for programs of hundreds of cases that
#               share nothing, where starting a process for each takes longer than the cases do.
#   PROCESSORS  2: tests whose threads spin for each other; beside two others of them a benchmark of 5 s takes 37.
#   ISAS        Without sanitizers it runs once more under each of these limits that is below this CPU (MNEME_CPU_ISA;
#               NAME.avx2, ...): kernels of machines that CI does not have.
#   TIMEOUT     Ends what hangs. Beside four busy loops on two cores a test that computes for a minute takes
#               four.
function(mneme_test name)
  cmake_parse_arguments(T "ALONE" "TIMEOUT;SHARDS;PROCESSORS" "SOURCES;USES;LIBS;ISAS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 900)
  endif()
  if(NOT T_PROCESSORS)
    set(T_PROCESSORS 1)
  endif()
  add_executable(${name} ${T_SOURCES})
  list(TRANSFORM T_USES REPLACE "/" "_")
  list(TRANSFORM T_USES PREPEND mneme_)
  target_link_libraries(${name} PRIVATE ${T_USES} ${T_LIBS} mneme_warnings fmt::fmt GTest::gmock GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_compile_definitions(${name} PRIVATE MNEME_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  file(RELATIVE_PATH room ${PROJECT_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR})
  mneme_lower_optimisation(${name} ${room})
  if(NOT T_ALONE)
    mneme_unity(${name})
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    mneme_test_headers(${name} ${room})
  endif()
  mneme_lesser_isas(lesser)
  foreach(isa IN LISTS T_ISAS)
    if(NOT MNEME_SANITIZE AND isa IN_LIST lesser)
      add_test(NAME ${name}.${isa} COMMAND ${name} --gtest_brief=1)
      set_tests_properties(${name}.${isa} PROPERTIES TIMEOUT ${T_TIMEOUT} PROCESSORS ${T_PROCESSORS}
        ENVIRONMENT MNEME_CPU_ISA=${isa})
    endif()
  endforeach()
  if(NOT T_SHARDS)
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 300 PROPERTIES TIMEOUT ${T_TIMEOUT} PROCESSORS ${T_PROCESSORS})
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
  list(TRANSFORM T_USES REPLACE "/" "_")
  list(TRANSFORM T_USES PREPEND mneme_)
  target_link_libraries(${name} PRIVATE ${T_USES} mneme_warnings)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
