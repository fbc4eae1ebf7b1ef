// The operations of units, from which forecasts are made.
#include "trainer/setup/run_flops.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "model/adapter.h"
#include "model/decoder_model.h"
#include "model/families.h"
#include "model/model_spec.h"
#include "trainer/machine/measure_rates.h"

namespace longshore {
namespace {

UnitFlops flops_with(const std::vector<std::string>& targets) {
  const Json config = {{"model_type", "llama"},      {"vocab_size", 32},
                       {"hidden_size", 16},          {"intermediate_size", 40},
                       {"num_hidden_layers", 1},     {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},   {"max_position_embeddings", 64},
                       {"rms_norm_eps", 1e-5},       {"hidden_act", "silu"},
                       {"tie_word_embeddings", true}};
  ArchSpec arch = read_arch_spec(config, "config.json");
  if (!targets.empty()) {
    arch.adapter = choose_adapters(arch, {.rank = 4, .targets = targets}, "adapter.targets");
  }
  const DecoderModel model(arch, make_model_spec(arch, {}));
  return flops_of_unit(model, UnitId(1), 64);
}

// Adapters count with the widths of the matrices that they adapt.
TEST(RunFlops, AdaptersCountWithTheWidthsOfTheirMatrices) {
  const UnitFlops none = flops_with({});
  EXPECT_EQ(none.adapter_inputs, 0.0);
  EXPECT_EQ(none.adapter_outputs, 0.0);
  const UnitFlops attention = flops_with({"attention"});
  EXPECT_EQ(attention.adapter_inputs, 4 * 16.0);
  EXPECT_EQ(attention.adapter_outputs, 2 * 16.0 + 2 * 8.0);
  const UnitFlops all = flops_with({"all-linear"});
  EXPECT_EQ(all.adapter_inputs, 6 * 16.0 + 40.0);
  EXPECT_EQ(all.adapter_outputs, 2 * 16.0 + 2 * 8.0 + 2 * 40.0 + 16.0);
}

// A measurement of a machine has a rate of adapters.
TEST(RunFlops, AdaptersAreMeasured) {
  const ComputeRates rates = measure_compute(DeviceKind::kCpu, DType::kF32, 0.001);
  EXPECT_GT(rates.adapters, 0.0);
}

}  // namespace
}  // namespace longshore
