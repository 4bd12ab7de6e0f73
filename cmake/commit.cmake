# cmake -DSOURCE=FOLDER -DOUTPUT=FILE -P commit.cmake: build_commit() of apps/mneme/commit.h, which says what revision SOURCE is.
cmake_minimum_required(VERSION 3.24)
find_package(Git QUIET)
# Where the sources come without their history (an archive), the environment may name the revision.
set(commit unknown)
if(DEFINED ENV{MNEME_COMMIT})
  set(commit $ENV{MNEME_COMMIT})
elseif(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --dirty --abbrev=12
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${described})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "apps/mneme/commit.h"

std::string mneme::build_commit() {
  return "@commit@";
}
]])
