// The ids of units, ranks and steps, each with its own type.
#pragma once

#include "base/ids.h"
