// Mixers whose state or convolution runs over positions do not leak from document to document.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/model/golden_case.h"
#include "tests/model/plain_runner.h"

namespace longshore {
namespace {

class DocumentLeak : public testing::TestWithParam<std::string> {};

// Goal: with only the second document trained, other tokens of the first change no bit of the loss
// or of a parameter's gradient. Lengths are within a chunk and above it.
TEST_P(DocumentLeak, TokensOfAnEarlierDocumentChangeNoBitOfALaterOne) {
  const GoldenCase golden = read_golden_case(GetParam());
  const DecoderModel model(golden.arch, make_model_spec(golden.arch, golden.file_tensors()));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const PlainRunner runner(model, golden.weights, dtype);
    for (const auto& [first, second] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 9}, {70, 1}, {3, 100}, {130, 65}}) {
      std::vector<int64_t> trained(static_cast<size_t>(second));
      std::iota(trained.begin(), trained.end(), 20);
      const std::vector<int64_t> skipped(static_cast<size_t>(first), -100);
      const auto run = [&](int64_t token) {
        std::vector<int64_t> other(static_cast<size_t>(first));
        for (size_t i = 0; i < other.size(); ++i) {
          other[i] = (token + static_cast<int64_t>(i) * token) % 250;
        }
        return runner.gradients({PlainRunner::make_batch({other, trained}, {skipped, trained})},
                                0.1, PlainRunner::Recompute::kUnit);
      };
      const auto one = run(3), two = run(11);
      EXPECT_EQ(one.loss_sum, two.loss_sum) << first << " " << second;
      for (const auto& [name, gradient] : one.gradients) {
        EXPECT_TRUE(at::equal(gradient, two.gradients.at(name))) << name << " " << first;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, DocumentLeak,
                         testing::Values("qwen3_5_text", "lfm2", "nemotron_h"));

}  // namespace
}  // namespace longshore
