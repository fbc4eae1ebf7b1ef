// moe_families: config.json readers of the families with experts. Pure functions; one thread.
#pragma once

#include "model/arch_spec.h"
#include "model/config_reader.h"

namespace longshore {

void read_qwen3_moe(ConfigReader& config, ArchSpec& arch);
void read_qwen2_moe(ConfigReader& config, ArchSpec& arch);
void read_mixtral(ConfigReader& config, ArchSpec& arch);
void read_olmoe(ConfigReader& config, ArchSpec& arch);
void read_gpt_oss(ConfigReader& config, ArchSpec& arch);

}  // namespace longshore
