# cmake -DSOURCE=FOLDER -DOUTPUT=FILE -P commit.cmake: build_commit() of src/perf/machine.h, which says what revision SOURCE is.
cmake_minimum_required(VERSION 3.24)
find_package(Git QUIET)
set(commit unknown)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --dirty --abbrev=12
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${described})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "src/perf/machine.h"

std::string mneme::build_commit() {
  return "@commit@";
}
]])
