// The precompiled header of every target that uses LibTorch. Files still include what they use:
// they compile without it too.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>
