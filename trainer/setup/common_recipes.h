// The run files of config/recipes, by name: "qwen3-8b_rtx-4090" is for that model on the common
// machine rtx-4090.
#pragma once

#include <span>

#include "base/texts.h"

namespace longshore {

std::span<const NamedText> common_recipes();

}  // namespace longshore
