// The engine trains a model by a plan. Set the compute threads before LibTorch's first computation.
#pragma once

#include "device/compute_threads.h"
#include "offload/engine/engine.h"
