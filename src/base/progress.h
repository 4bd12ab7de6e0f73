// ProgressFn, for the rooms.
#pragma once

#include "mneme/progress.h"
