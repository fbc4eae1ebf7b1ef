// The engine trains a model by a plan and an update rule, such as AdamWRule. Set the compute
// threads before LibTorch's first computation.
#pragma once

#include "device/compute_threads.h"
#include "offload/engine/engine.h"
#include "offload/optimizer/adamw.h"
