// One optimizer step of an engine.
#pragma once

#include "offload/engine/train_step.h"
