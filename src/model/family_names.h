// family_names: the tensor names of each family. Internal to families.cpp. Pure functions.
#pragma once

#include <string_view>

#include "model/families.h"

namespace longshore {

// `block_class` is the class of a block in transformers.
NameTable llama_names(std::string_view block_class);
// These have norms only after attention and MLP.
NameTable olmo_names(std::string_view block_class);
// These have norms before and after attention and MLP.
NameTable gemma_names(std::string_view block_class);
// These have fused matrices.
NameTable phi_names(std::string_view block_class);
// These have norms before and after, and gate and up in one matrix.
NameTable glm_names(std::string_view block_class);
NameTable hunyuan_names(std::string_view block_class);
// These have experts and, in some families, an expert for all tokens.
NameTable qwen_moe_names(std::string_view block_class);
NameTable mixtral_names(std::string_view block_class);
NameTable gpt_oss_names(std::string_view block_class);
// Adds the prefixes of transformers 4 and 5 for a model that is the text tower of a wrapper.
NameTable in_wrapper(NameTable names);
// These have gated DeltaNet in most layers.
NameTable qwen3_5_names();
// Adds the names of the wrapper with a tower of pictures.
NameTable qwen3_5_wrapper_names();
NameTable gpt2_names(std::string_view block_class);

}  // namespace longshore
