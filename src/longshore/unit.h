// The interface of a unit's code, and the description of a model as a list of units.
#pragma once

#include "model/units/unit.h"
#include "shard/unit_spec.h"
