// The embedding's rows and gradients with an adapter follow the formulas of PEFT.
#include <gtest/gtest.h>

#include <map>

#include "model/decoder/decoder_units.h"
#include "model/families/families.h"
#include "model/parameters/model_spec.h"
#include "tests/model/plain_runner.h"

namespace longshore {
namespace {

// Rows are W[t] + scaling A[t] B^T, with DoRA times the magnitudes / the norms of the columns of W
// + scaling A B^T over all tokens, which have no gradient; the family's factor of rows comes last.
void expect_follows_the_formula(bool dora) {
  at::manual_seed(11);
  ArchSpec arch = read_arch_spec({{"model_type", "llama"},
                                  {"vocab_size", 50},
                                  {"hidden_size", 24},
                                  {"intermediate_size", 32},
                                  {"num_hidden_layers", 1},
                                  {"num_attention_heads", 4}},
                                 "config.json");
  arch.embedding_scale = 3.0;
  arch.adapter = {.magnitudes = dora,
                  .targets = {{{kNoLayer, Module::kTokens}, {.rank = 3, .scaling = 1.5}}}};
  const ModelSpec model = make_model_spec(arch, {});
  std::vector<at::Tensor> values, exact;
  for (const ParamSpec& parameter : model.units.front().parameters) {
    values.push_back(at::randn(parameter.shape));
    exact.push_back(values.back().to(at::kDouble).requires_grad_(true));
  }
  ASSERT_EQ(values.size(), dora ? 4u : 3u);
  const MicroBatch batch = PlainRunner::make_batch({{7, 1, 7, 49, 0, 7}}, {{1, 7, 49, 0, 7, 2}});
  const EmbeddingUnit unit(arch);
  const at::Tensor found = unit.forward(values, {}, batch).at(0);
  at::Tensor table = exact[0] + 1.5 * exact[1].mm(exact[2].t());
  if (dora) table = table * (exact[3] / table.square().sum(0).sqrt().detach());
  const at::Tensor expected = 3.0 * table.index_select(0, batch.tokens);
  EXPECT_TRUE(at::allclose(found, expected.to(at::kFloat), 1e-5, 1e-5)) << dora;
  const at::Tensor grad = at::randn(found.sizes());
  (expected * grad).sum().backward();
  std::map<std::string, at::Tensor> sums;
  NamedSink sink(model, UnitId(0), sums);
  unit.backward(values, {}, batch, {grad}, sink);
  ASSERT_EQ(sums.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string& name = model.units.front().parameters[i].name;
    EXPECT_TRUE(at::allclose(sums.at(name), exact[i].grad().to(at::kFloat), 1e-4, 1e-4)) << name;
  }
}

TEST(Embedding, WithAnAdapterFollowsTheFormula) {
  for (const bool dora : {false, true}) expect_follows_the_formula(dora);
}

}  // namespace
}  // namespace longshore
