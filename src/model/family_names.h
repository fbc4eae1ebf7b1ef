// FamilyNames: what the families call their tensors. Internal to families.cpp. Pure functions.
#pragma once

#include <string_view>

#include "model/families.h"

namespace longshore {

// `block_class`: of a block, in the names of transformers.
NameTable llama_names(std::string_view block_class);
// Norms behind attention and MLP only.
NameTable olmo_names(std::string_view block_class);
// Norms before and behind.
NameTable gemma_names(std::string_view block_class);
// Fused matrices.
NameTable phi_names(std::string_view block_class);
// Norms before and behind, gate and up in one.
NameTable glm_names(std::string_view block_class);
NameTable hunyuan_names(std::string_view block_class);
// Experts, and the expert for all tokens where the family has one.
NameTable qwen_moe_names(std::string_view block_class);
NameTable mixtral_names(std::string_view block_class);
NameTable gpt_oss_names(std::string_view block_class);
// Of a model that is the text tower of another: as transformers 4 and 5 write them.
NameTable in_wrapper(NameTable names);
NameTable gpt2_names(std::string_view block_class);

}  // namespace longshore
