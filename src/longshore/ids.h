// The ids of units, ranks and steps, each a type of its own.
#pragma once

#include "base/ids.h"
