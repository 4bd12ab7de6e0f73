// ProgressFn for code of src/.
#pragma once

#include "mneme/progress.h"
