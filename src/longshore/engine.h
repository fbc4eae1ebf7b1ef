// Engine: trains a model as a plan says. Set the compute threads before LibTorch computes anything.
#pragma once

#include "device/compute_threads.h"
#include "offload/engine/engine.h"
