// The number of targets with the highest score: ties, pieces, and transformers' numbers.
#include "model/losses/token_hits.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/fakes/test_files.h"
#include "tests/model/golden_case.h"
#include "tests/model/plain_runner.h"

namespace longshore {
namespace {

// Goal: of equal scores the lowest id is the highest, in one piece and across pieces.
TEST(TokenHits, ATieGoesToTheLowestId) {
  const at::Tensor scores = at::tensor({1.0F, 3.0F, 3.0F, 0.0F,  //
                                        2.0F, 2.0F, 1.0F, 2.0F,  //
                                        0.0F, 1.0F, 1.0F, 4.0F})
                                .view({3, 4});
  const at::Tensor targets = at::tensor({2, 3, 3}, at::kLong);
  const at::Tensor lowest = at::tensor({1, 0, 3}, at::kLong);
  const at::Tensor rows = at::arange(3);
  for (const auto& [wanted, hits] : {std::pair(targets, 1), std::pair(lowest, 3)}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      TokenHits whole;
      whole.compare(scores.to(dtype), wanted);
      EXPECT_EQ(whole.count().hits, hits);
      EXPECT_EQ(whole.count().compared, 3);
    }
    for (const int64_t size : {1, 2, 3}) {
      TokenHits pieces;
      for (int64_t first = 0; first < 4; first += size) {
        pieces.note_piece(scores.slice(1, first, first + size), rows, 3, first);
      }
      pieces.compare_pieces(rows, wanted);
      EXPECT_EQ(pieces.count().hits, hits) << size;
      EXPECT_EQ(pieces.count().compared, 3) << size;
    }
  }
}

// Goal: a batch without trained positions counts nothing, in pieces too.
TEST(TokenHits, NothingTrainedCountsNothing) {
  const at::Tensor none = at::zeros({0}, at::kLong);
  TokenHits pieces;
  pieces.compare_pieces(none, none);
  EXPECT_EQ(pieces.count().compared, 0);
  EXPECT_EQ(TokenHits().count().hits, 0);
}

// Goal: the count is transformers' over the same rows, exactly, with the whole head and with the
// vocabulary in pieces; caps and divisors change no order but are in the scores.
TEST(TokenHits, CountsAreThoseOfTransformers) {
  const std::string directory = test_data() + "/parity/golden_accuracy/";
  std::ifstream file(directory + "golden.json");
  const Json cases = Json::parse(file);
  for (const auto& [name, facts] : cases.items()) {
    const GoldenCase golden = read_golden_case(name);
    const ModelSpec spec = make_model_spec(golden.arch, golden.file_tensors());
    std::vector<std::vector<int64_t>> tokens, targets;
    for (const GoldenRow& row : read_golden_rows(directory + name + ".jsonl")) {
      tokens.push_back(row.tokens);
      targets.push_back(row.targets);
    }
    const MicroBatch batch = PlainRunner::make_batch(tokens, targets);
    for (const int64_t rows : {0, 64, 100}) {
      const UnitCut cut{.halves = {}, .embedding_rows = rows, .head_rows = rows};
      const DecoderModel model(golden.arch, spec, cut);
      const HitCount count = PlainRunner(model, golden.weights, at::kFloat).hits(batch);
      EXPECT_EQ(count.hits, facts.at("hits").get<int64_t>()) << name << " " << rows;
      EXPECT_EQ(count.compared, facts.at("trained_tokens").get<int64_t>()) << name << " " << rows;
    }
  }
}

}  // namespace
}  // namespace longshore
