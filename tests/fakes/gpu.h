// What tests of the GPU begin with: without one they are skipped, and say so; they never pass.
#pragma once

#include <gtest/gtest.h>

#include "device/cuda_runtime.h"

#define LONGSHORE_NEEDS_GPU() \
  if (longshore::cuda_devices().empty()) GTEST_SKIP() << "not run: no GPU"
