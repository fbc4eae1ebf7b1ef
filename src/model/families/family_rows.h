// family_rows: what the rows of families.cpp are made of: the names of the tensors of each family,
// and the config.json readers of those that have a file of their own. Internal to
// src/model/families. Pure functions; one thread.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>

#include "model/families/arch_spec.h"
#include "model/families/config_reader.h"
#include "model/families/families.h"

namespace longshore {

using ModuleNames = std::initializer_list<std::pair<Module, std::string_view>>;

// Returns the names of Llama with these changes. `block_class` is the class of a block in
// transformers, here and below.
NameTable named_as_llama(std::string_view block_class, ModuleNames changes);
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
// In these a layer is a single mixer, an MLP or experts.
NameTable nemotron_h_names(std::string_view block_class);
NameTable gpt2_names(std::string_view block_class);

// The reader of Gemma 4's text model is in gemma4_family.cpp.
void read_gemma4_text(ConfigReader& config, ArchSpec& arch);

// The families with experts or gated DeltaNet are in moe_families.cpp.
void read_qwen3_moe(ConfigReader& config, ArchSpec& arch);
void read_qwen2_moe(ConfigReader& config, ArchSpec& arch);
void read_mixtral(ConfigReader& config, ArchSpec& arch);
void read_olmoe(ConfigReader& config, ArchSpec& arch);
void read_gpt_oss(ConfigReader& config, ArchSpec& arch);
void read_qwen3_5_text(ConfigReader& config, ArchSpec& arch);
void read_qwen3_5_moe_text(ConfigReader& config, ArchSpec& arch);
void read_qwen3_next(ConfigReader& config, ArchSpec& arch);
void read_glm4_moe(ConfigReader& config, ArchSpec& arch);
void read_deepseek_v3(ConfigReader& config, ArchSpec& arch);

// The families that rotate in sliding layers alone are in sliding_families.cpp.
void read_exaone4(ConfigReader& config, ArchSpec& arch);
void read_cohere(ConfigReader& config, ArchSpec& arch);
void read_cohere2(ConfigReader& config, ArchSpec& arch);
void read_muse_glimmer_text(ConfigReader& config, ArchSpec& arch);

// The families whose layers have a convolution are in convolution_families.cpp.
NameTable lfm2_names(std::string_view block_class);
void read_lfm2(ConfigReader& config, ArchSpec& arch);
void read_nemotron_h(ConfigReader& config, ArchSpec& arch);

}  // namespace longshore
