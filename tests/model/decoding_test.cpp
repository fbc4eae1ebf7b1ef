// Greedy decoding with state gives the answers of transformers, for every family, adapters and NF4,
// and the same bits however sequences are decoded.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <optional>
#include <set>

#include "device/gpu_tensors.h"
#include "tests/model/generation_case.h"
#include "tests/model/plain_runner.h"

namespace longshore {
namespace {

// MKL gives the same bits at every number of threads only in strict mode, which it reads once.
const int kStrictMkl = setenv("MKL_CBWR", "AVX2,STRICT", 1);

constexpr double kForwardTolerance = 1e-5;
// transformers in fp32 has another order of sums.
constexpr double kTransformersTolerance = 5e-5;

// How the sequences of a case are decoded.
struct Decoding {
  size_t slots = 1;         // sequences at a time
  size_t rounds_apart = 0;  // rounds from one sequence's admission to that of the next
  size_t piece = 1000;      // positions of a prompt that one round computes
};

struct Decoded {
  std::vector<int64_t> tokens;
  std::vector<at::Tensor> logits;  // of each token, [vocabulary]
};

// Decodes a case's prompts greedily. Sequences that have their tokens leave, and those that wait
// take their slots, whose memory is not cleared.
class Decoder {
 public:
  Decoder(const GenerationCase& one, const PlainRunner& runner, at::ScalarType compute)
      : one_(one), runner_(runner), compute_(compute) {}

  std::vector<Decoded> run(const std::vector<size_t>& order, const Decoding& how) {
    results_.assign(one_.answers.size(), {});
    const StateUse use{.longest = longest(), .compute = compute_};
    PlainStates states(one_.model(), static_cast<int32_t>(how.slots), use);
    std::deque<size_t> waiting(order.begin(), order.end());
    std::set<int32_t> free;
    for (size_t slot = 0; slot < how.slots; ++slot) free.insert(static_cast<int32_t>(slot));
    size_t next_admission = 0;
    for (size_t round = 0; !waiting.empty() || !active_.empty(); ++round) {
      while (!waiting.empty() && !free.empty() && round >= next_admission) {
        admit(waiting.front(), free.extract(free.begin()).value());
        waiting.pop_front();
        next_admission = round + how.rounds_apart;
      }
      step(states, how.piece);
      std::erase_if(active_, [&](const Active& sequence) {
        const bool ended = done(sequence);
        if (ended) free.insert(sequence.slot);
        return ended;
      });
    }
    return results_;
  }

 private:
  struct Active {
    size_t number = 0;
    int32_t slot = 0;
    std::vector<int64_t> text;
    int64_t computed = 0;  // positions whose state is kept
    int64_t length = 0;    // of the text that they were computed as
  };

  int64_t longest() const {
    size_t most = 0;
    for (const auto& answer : one_.answers) most = std::max(most, answer.text().size());
    return static_cast<int64_t>(most);
  }

  bool done(const Active& sequence) const {
    return results_[sequence.number].tokens.size() == one_.answers[sequence.number].tokens.size();
  }

  void admit(size_t number, int32_t slot) {
    const std::vector<int64_t>& prompt = one_.answers[number].prompt;
    active_.push_back(
        {.number = number, .slot = slot, .text = prompt, .length = std::ssize(prompt)});
  }

  // One round: the next piece of each prompt, or the last token of a text.
  void step(PlainStates& states, size_t piece) {
    const std::optional<int64_t> restart = one_.model().restart_length();
    std::vector<NextTokens> next;
    for (Active& sequence : active_) {
      const auto text = std::ssize(sequence.text);
      if (restart && sequence.length <= *restart && text > *restart) sequence.computed = 0;
      sequence.length = text;
      const auto begin = sequence.text.begin() + sequence.computed;
      const auto count =
          std::min(std::ssize(sequence.text) - sequence.computed, static_cast<int64_t>(piece));
      next.push_back({.slot = sequence.slot,
                      .before = sequence.computed,
                      .tokens = {begin, begin + count},
                      .length = text});
      sequence.computed += count;
    }
    const std::vector<at::Tensor> logits = runner_.continued_logits(states, next);
    for (size_t i = 0; i < active_.size(); ++i) {
      Active& sequence = active_[i];
      if (sequence.computed < std::ssize(sequence.text)) continue;
      const at::Tensor last = logits[i][-1].to(at::kFloat).clone();
      const auto token = last.argmax().item<int64_t>();
      results_[sequence.number].tokens.push_back(token);
      results_[sequence.number].logits.push_back(last);
      sequence.text.push_back(token);
    }
  }

  const GenerationCase& one_;
  const PlainRunner& runner_;
  at::ScalarType compute_;
  std::vector<Active> active_;
  std::vector<Decoded> results_;
};

std::vector<Decoded> decode_alone(const GenerationCase& one, const PlainRunner& runner,
                                  at::ScalarType compute, size_t piece = 1000) {
  std::vector<Decoded> all;
  for (size_t number = 0; number < one.answers.size(); ++number) {
    all.push_back(Decoder(one, runner, compute).run({number}, {.piece = piece})[number]);
  }
  return all;
}

void expect_same_bits(const std::vector<Decoded>& got, const std::vector<Decoded>& expected,
                      const std::string& how) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t number = 0; number < got.size(); ++number) {
    EXPECT_EQ(got[number].tokens, expected[number].tokens) << how << ", answer " << number;
    ASSERT_EQ(got[number].logits.size(), expected[number].logits.size());
    size_t same = 0;
    while (same < got[number].logits.size() &&
           at::equal(got[number].logits[same], expected[number].logits[same])) {
      ++same;
    }
    EXPECT_EQ(same, got[number].logits.size())
        << how << ", answer " << number << ": the first token whose logits differ";
  }
}

// Decodes a case in several ways, and expects the bits of each sequence alone. Returns these.
std::vector<Decoded> decode_in_all_ways(const GenerationCase& one, at::ScalarType compute) {
  const PlainRunner runner(one.model(), one.weights, compute);
  const std::vector<Decoded> alone = decode_alone(one, runner, compute);
  Decoder together(one, runner, compute);
  expect_same_bits(together.run({0, 1, 2, 3, 4}, {.slots = 5}), alone, "all together");
  expect_same_bits(together.run({4, 1, 3, 0, 2}, {.slots = 3, .rounds_apart = 5, .piece = 6}),
                   alone, "three at a time, in pieces of 6");
  return alone;
}

double log_probability(const at::Tensor& logits, int64_t token) {
  return logits.to(at::kDouble).log_softmax(0)[token].item<double>();
}

// Returns the logits of each token of an answer as training computes them: of the whole text. Of a
// family with other rotations for long texts: of the text that was short, then of the whole.
std::vector<at::Tensor> training_logits(const GenerationCase& one, const PlainRunner& runner,
                                        const GenerationCase::Answer& answer) {
  std::vector<int64_t> text = answer.text();
  const int64_t first = std::ssize(answer.prompt) - 1;
  std::vector<at::Tensor> rows;
  const at::Tensor whole = runner.logits(PlainRunner::make_batch({text}, {text}));
  for (int64_t at = first; at < std::ssize(text); ++at) rows.push_back(whole[at]);
  const std::optional<int64_t> restart = one.model().restart_length();
  if (!restart || *restart >= std::ssize(text)) return rows;
  text.resize(static_cast<size_t>(*restart));
  const at::Tensor shorter = runner.logits(PlainRunner::make_batch({text}, {text}));
  for (int64_t at = first; at < *restart; ++at) rows[static_cast<size_t>(at - first)] = shorter[at];
  return rows;
}

// Decoding runs on one thread, because tensors are tiny.
class GreedyDecoding : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

// In fp32 the tokens of every answer are those of transformers, alone, together and in pieces, and
// their log-probabilities those of the forward of training and of transformers.
TEST_P(GreedyDecoding, GivesTheAnswersOfTransformers) {
  const GenerationCase one = read_generation_case(GetParam(), DType::kF32);
  const PlainRunner runner(one.model(), one.weights, at::kFloat);
  const std::vector<Decoded> decoded = decode_in_all_ways(one, at::kFloat);
  double from_training = 0.0, from_transformers = 0.0;
  for (size_t number = 0; number < decoded.size(); ++number) {
    const GenerationCase::Answer& answer = one.answers[number];
    ASSERT_EQ(decoded[number].tokens, answer.tokens) << number;
    const std::vector<at::Tensor> trained = training_logits(one, runner, answer);
    for (size_t i = 0; i < answer.tokens.size(); ++i) {
      const double got = log_probability(decoded[number].logits[i], answer.tokens[i]);
      from_training =
          std::max(from_training, std::abs(got - log_probability(trained[i], answer.tokens[i])));
      from_transformers = std::max(from_transformers, std::abs(got - answer.log_probabilities[i]));
    }
  }
  EXPECT_LE(from_training, kForwardTolerance);
  EXPECT_LE(from_transformers, kTransformersTolerance);
  RecordProperty("from_training", std::to_string(from_training));
  RecordProperty("from_transformers", std::to_string(from_transformers));
}

// With halves of blocks, groups of experts and pieces of tables as units the tokens in fp32 are the
// same.
TEST_P(GreedyDecoding, GivesTheSameTokensWithAnotherCutOfUnits) {
  const UnitPolicy pieces{
      .kind = UnitPolicy::Kind::kPiece, .classes = {}, .rows = 100, .groups = {}};
  const GenerationCase one = read_generation_case(GetParam(), DType::kF32, pieces);
  EXPECT_GT(one.model().spec().units.size(),
            read_generation_case(GetParam(), DType::kF32).model().spec().units.size());
  const PlainRunner runner(one.model(), one.weights, at::kFloat);
  const std::vector<Decoded> decoded =
      Decoder(one, runner, at::kFloat).run({0, 1, 2, 3, 4}, {.slots = 5});
  for (size_t number = 0; number < decoded.size(); ++number) {
    EXPECT_EQ(decoded[number].tokens, one.answers[number].tokens) << number;
  }
}

// In bf16 a sequence has the same bits alone, together with others and in pieces.
TEST_P(GreedyDecoding, HasTheSameBitsInBf16) {
  const GenerationCase one = read_generation_case(GetParam(), DType::kBF16);
  const std::vector<Decoded> decoded = decode_in_all_ways(one, at::kBFloat16);
  for (const Decoded& answer : decoded) {
    for (const at::Tensor& logits : answer.logits)
      EXPECT_TRUE(logits.isfinite().all().item<bool>());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GreedyDecoding, testing::ValuesIn(generation_case_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace longshore
