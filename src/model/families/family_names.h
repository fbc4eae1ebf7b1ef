// family_names: the tensor names of each family. Internal to families.cpp. Pure functions.
#pragma once

#include <string_view>

#include "model/families/families.h"

namespace longshore {

// `block_class` is the class of a block in transformers.
NameTable llama_names(std::string_view block_class);
// These have norms only after attention and MLP.
NameTable olmo_names(std::string_view block_class);
// These have one norm, which attention and MLP read.
NameTable cohere_names(std::string_view block_class);
// These have norms before and after attention and MLP.
NameTable gemma_names(std::string_view block_class);
// These also have a stored scale of each block's output, and may have experts beside the MLP.
NameTable gemma4_names(std::string_view block_class);
// These have fused matrices.
NameTable phi_names(std::string_view block_class);
// These have norms before and after, and gate and up in one matrix.
NameTable glm_names(std::string_view block_class);
// These have an MLP without a gate.
NameTable starcoder_names(std::string_view block_class);
NameTable hunyuan_names(std::string_view block_class);
// Adds experts and, for some families, an expert for all tokens.
NameTable with_qwen_experts(NameTable names);
// Adds experts of DeepSeek V3's kind, whose files may hold an extra layer.
NameTable with_corrected_experts(NameTable names);
// These have latent attention and such experts.
NameTable deepseek_names(std::string_view block_class);
NameTable mixtral_names(std::string_view block_class);
NameTable gpt_oss_names(std::string_view block_class);
// Adds the prefixes of transformers 4 and 5 for a model that is the text tower of a wrapper.
NameTable in_wrapper(NameTable names);
// These have gated DeltaNet in most layers.
NameTable qwen3_5_names(std::string_view block_class);
// Names the model as the text tower of a wrapper that has a tower of pictures.
NameTable in_qwen3_5_wrapper(NameTable names);
// Names the model as the text tower of a wrapper that has towers of pictures and sound.
NameTable in_gemma4_wrapper(NameTable names);
// These have gated DeltaNet with fused matrices, and experts.
NameTable qwen3_next_names(std::string_view block_class);
// These are named as Gemma's, with a gate of attention.
NameTable muse_glimmer_names(std::string_view block_class);
NameTable in_muse_glimmer_wrapper(NameTable names);
// These have gated convolutions in most layers.
NameTable lfm2_names(std::string_view block_class);
// In these a layer is a single mixer, an MLP or experts.
NameTable nemotron_h_names(std::string_view block_class);
NameTable gpt2_names(std::string_view block_class);

}  // namespace longshore
