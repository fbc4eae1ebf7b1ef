// The operations of units, from which forecasts are made.
#include "trainer/setup/run_flops.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "model/families/families.h"
#include "model/models/decoder_model.h"
#include "model/models/grouped_model.h"
#include "model/parameters/adapter.h"
#include "model/parameters/model_spec.h"
#include "trainer/machine/measure_rates.h"

namespace longshore {
namespace {

ArchSpec small_llama(bool tied, int64_t layers = 1) {
  const Json config = {{"model_type", "llama"},       {"vocab_size", 32},
                       {"hidden_size", 16},           {"intermediate_size", 40},
                       {"num_hidden_layers", layers}, {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},    {"max_position_embeddings", 64},
                       {"rms_norm_eps", 1e-5},        {"hidden_act", "silu"},
                       {"tie_word_embeddings", tied}};
  return read_arch_spec(config, "config.json");
}

UnitFlops flops_with(const std::vector<std::string>& targets) {
  ArchSpec arch = small_llama(true);
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

// A merged unit has the products of its members: not its embedding's table, unless the head in it
// multiplies by that. A table in another unit counts with the head that multiplies by it.
TEST(RunFlops, AMergedUnitHasTheProductsOfItsMembers) {
  for (const bool tied : {false, true}) {
    const ArchSpec arch = small_llama(tied);
    const DecoderModel model(arch, make_model_spec(arch, {}));
    const auto products = [&](const std::vector<std::vector<UnitId>>& groups) {
      const GroupedModel merged(&model, groups);
      std::vector<double> products;
      for (const UnitSpec& unit : merged.spec().units) {
        products.push_back(flops_of_unit(merged, unit.id, 64).products);
      }
      return products;
    };
    const UnitId embedding(0), block(1), head(2);
    const double of_block = 2.0 * (2 * 16 * 16 + 2 * 8 * 16 + 3 * 40 * 16);
    const double of_head = 2.0 * 32 * 16;
    EXPECT_EQ(products({{embedding}, {block}, {head}}),
              (std::vector<double>{0.0, of_block, of_head}));
    EXPECT_EQ(products({{embedding, block}, {head}}), (std::vector<double>{of_block, of_head}));
    EXPECT_EQ(products({{embedding, block, head}}), (std::vector<double>{of_block + of_head}));
  }
}

// A merged unit has the attention of each of its blocks, with and without the head.
TEST(RunFlops, AMergedUnitHasTheAttentionOfItsMembers) {
  const ArchSpec arch = small_llama(false, 3);
  const DecoderModel model(arch, make_model_spec(arch, {}));
  constexpr int64_t kDocument = 64;
  const double of_block = 4.0 * 16 * kDocument / 2.0;
  const UnitId embedding(0), one(1), two(2), three(3), head(4);
  const GroupedModel merged(&model, {{embedding}, {one, two}, {three, head}});
  std::vector<double> attention;
  for (const UnitSpec& unit : merged.spec().units) {
    attention.push_back(flops_of_unit(merged, unit.id, kDocument).attention);
  }
  EXPECT_EQ(attention, (std::vector<double>{0.0, 2 * of_block, of_block}));
}

// A measurement of a machine has a rate of adapters.
TEST(RunFlops, AdaptersAreMeasured) {
  const ComputeRates rates = measure_compute(DeviceKind::kCpu, DType::kF32, 0.001);
  EXPECT_GT(rates.adapters, 0.0);
}

}  // namespace
}  // namespace longshore
