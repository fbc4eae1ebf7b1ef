// Decoder: the order in which sequences take slots and leave them, over a made-up model.
#include "trainer/use/decoder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr int64_t kVocabulary = 32;
constexpr TokenId kEnd = 31;

// A model whose next token follows from all tokens of its sequence: the state of a slot is the list
// of tokens that were computed there. It checks each call, and keeps what was asked.
class MadeUpModel {
 public:
  explicit MadeUpModel(int32_t slots) : states_(static_cast<size_t>(slots)) {}

  at::Tensor operator()(const DecodeCall& call) {
    const auto& [slots, before, lengths] =
        std::tie(call.continued.slots, call.continued.before, call.continued.lengths);
    std::string asked;
    std::vector<int64_t> document_of_row;
    for (size_t d = 0; d < slots.size(); ++d) {
      std::vector<TokenId>& state = states_.at(static_cast<size_t>(slots[d].value));
      EXPECT_LE(before[d], std::ssize(state)) << "a state cannot have what was not computed";
      EXPECT_TRUE(before[d] == 0 || before[d] == std::ssize(state)) << "nor lose a part";
      state.resize(static_cast<size_t>(before[d]));
      const int64_t begin = call.batch.document_starts[d], end = call.batch.document_starts[d + 1];
      for (int64_t row = begin; row < end; ++row) {
        EXPECT_EQ(call.batch.positions()[static_cast<size_t>(row)], std::ssize(state));
        state.push_back(static_cast<TokenId>(call.batch.tokens()[static_cast<size_t>(row)]));
        document_of_row.push_back(static_cast<int64_t>(d));
      }
      EXPECT_GE(lengths[d], std::ssize(state));
      asked += (asked.empty() ? "" : " ") + std::to_string(slots[d].value) + ":" +
               std::to_string(before[d]) + "+" + std::to_string(end - begin);
    }
    rows_most = std::max(rows_most, call.batch.token_count());
    calls.push_back(asked);
    at::Tensor scores = at::zeros({std::ssize(call.last_rows), kVocabulary});
    for (size_t i = 0; i < call.last_rows.size(); ++i) {
      const size_t document =
          static_cast<size_t>(document_of_row.at(static_cast<size_t>(call.last_rows[i])));
      const auto slot = static_cast<size_t>(slots[document].value);
      uint64_t sum = 0;  // of the whole state; it matters to draws with a temperature
      for (const TokenId token : states_[slot]) sum = 31 * sum + static_cast<uint64_t>(token);
      scores[static_cast<int64_t>(i)][static_cast<int64_t>(sum % kVocabulary)] = 6.0;
      scores[static_cast<int64_t>(i)][next_of(states_[slot])] = 9.0;
    }
    return scores;
  }

  // Returns the token after a text: it counts upwards, and ends at a multiple of 10.
  static TokenId next_of(const std::vector<TokenId>& tokens) {
    const TokenId next = tokens.back() + 1;
    return next % 10 == 0 ? kEnd : next;
  }

  std::vector<std::string> calls;  // "slot:before+rows", by document
  int64_t rows_most = 0;

 private:
  std::vector<std::vector<TokenId>> states_;
};

struct Answered {
  std::vector<std::vector<TokenId>> answers;
  std::vector<Finish> finishes;
};

using Prompts = std::vector<std::vector<TokenId>>;

Answered run(Decoder& decoder, const Prompts& prompts, DecodeSettings settings = {}) {
  settings.stops = {kEnd};
  Answered result;
  uint64_t next = 0;
  decoder.run(
      settings,
      [&]() -> std::optional<DecodeRequest> {
        if (next == prompts.size()) return std::nullopt;
        const uint64_t prompt = next++;
        return DecodeRequest{.tokens = prompts[prompt], .prompt = prompt};
      },
      [&](const Decoded& decoded) {
        result.answers.push_back(decoded.tokens);
        result.finishes.push_back(decoded.finish);
      });
  return result;
}

DecodeLimits limits(int32_t slots, int64_t positions) {
  return {.slots = slots, .longest = 100, .positions = positions};
}

// Goal: a sequence that ends frees its slot, which the next prompt takes in the same round, while
// the others go on; answers come in the order of prompts.
TEST(Decoder, GivesAFreeSlotToTheNextPromptAtOnce) {
  MadeUpModel model(2);
  Decoder decoder(limits(2, 64), std::ref(model));
  const Answered found = run(decoder, {{5, 6}, {7, 8}, {17, 18}});
  EXPECT_EQ(found.answers, (Prompts{{7, 8, 9, kEnd}, {9, kEnd}, {19, kEnd}}));
  EXPECT_EQ(found.finishes, (std::vector{Finish::kStop, Finish::kStop, Finish::kStop}));
  EXPECT_EQ(model.calls,
            (std::vector<std::string>{"0:0+2 1:0+2", "0:2+1 1:2+1", "0:3+1 1:0+2", "0:4+1 1:2+1"}));
}

// Goal: the answers are the same with any number of slots and of rows in a call, also with tokens
// that are drawn; no call has more rows than the limit, and prompts are computed in parts.
TEST(Decoder, GivesTheSameAnswersWithAnySlots) {
  Prompts prompts;
  for (TokenId i = 0; i < 23; ++i) {
    prompts.emplace_back();
    for (TokenId t = 0; t <= i % 7; ++t) prompts.back().push_back((3 * i + t) % 29);
  }
  const auto answers = [&](int32_t slots, int64_t positions, double temperature) {
    MadeUpModel model(slots);
    Decoder decoder(limits(slots, positions), std::ref(model));
    const Answered found =
        run(decoder, prompts, {.max_new_tokens = 12, .sampling = {.temperature = temperature}});
    EXPECT_LE(model.rows_most, positions);
    EXPECT_EQ(found.answers.size(), prompts.size());
    return found.answers;
  };
  for (const double temperature : {0.0, 4.0}) {
    const Prompts alone = answers(1, 100, temperature);
    for (const auto& [slots, positions] : {std::pair{1, 1}, {2, 2}, {3, 5}, {8, 9}, {64, 64}}) {
      EXPECT_EQ(answers(slots, positions, temperature), alone) << slots << " " << positions;
    }
  }
}

// Goal: sequences that have their prompt go on while a long prompt is computed in parts.
TEST(Decoder, ComputesLongPromptsBesideOtherSequences) {
  MadeUpModel model(2);
  Decoder decoder(limits(2, 4), std::ref(model));
  run(decoder, {{1, 2, 3}, {2, 3, 4, 5, 6, 7, 8}}, {.max_new_tokens = 3});
  EXPECT_EQ(model.calls,
            (std::vector<std::string>{"0:0+3 1:0+1", "0:3+1 1:1+3", "0:4+1 1:4+3", "1:7+1"}));
}

// Goal: an answer ends after max_new_tokens, where its caller says so, or at a stop token, and says
// which.
TEST(Decoder, SaysWhyAnAnswerEnds) {
  MadeUpModel model(3);
  Decoder decoder(limits(3, 64), std::ref(model));
  std::vector<int64_t> called;
  const Answered found =
      run(decoder, {{1}, {3}, {8}},
          {.max_new_tokens = 4, .on_token = [&](int64_t request, std::span<const TokenId> added) {
             called.push_back(request);
             return request == 1 && added.size() == 2;
           }});
  EXPECT_EQ(found.answers, (Prompts{{2, 3, 4, 5}, {4, 5}, {9, kEnd}}));
  EXPECT_EQ(found.finishes, (std::vector{Finish::kLength, Finish::kText, Finish::kStop}));
  EXPECT_EQ(std::ranges::count(called, 2), 1) << "not for the token that ends the answer";
}

// Goal: a prompt that begins with what a slot has computed continues it, as the next turn of a
// conversation does; another prompt begins anew.
TEST(Decoder, ContinuesTheStateOfAConversation) {
  MadeUpModel model(1);
  Decoder decoder(limits(1, 64), std::ref(model));
  run(decoder, {{6, 7}});  // answers 8, 9 and the end, which is not computed
  run(decoder, {{6, 7, 8, 9, kEnd, 4, 17}});
  run(decoder, {{6, 7, 4}}, {.max_new_tokens = 1});
  EXPECT_EQ(model.calls, (std::vector<std::string>{"0:0+2", "0:2+1", "0:3+1",  //
                                                   "0:4+3", "0:7+1", "0:8+1",  //
                                                   "0:0+3"}));
  EXPECT_EQ(decoder.work().prompt_rows, 2 + 3 + 3);
}

// Goal: where rotations follow from the length of the text, a sequence that passes this length is
// computed anew, and only then; a state from before it is not continued by a longer prompt.
TEST(Decoder, BeginsAnewWhereATextPassesTheLengthOfRestart) {
  MadeUpModel model(1);
  DecodeLimits with_restart = limits(1, 64);
  with_restart.restart_length = 4;
  Decoder decoder(with_restart, std::ref(model));
  run(decoder, {{1, 2, 3}}, {.max_new_tokens = 4});
  EXPECT_EQ(model.calls, (std::vector<std::string>{"0:0+3", "0:3+1", "0:0+5", "0:5+1"}));
  model.calls.clear();
  run(decoder, {{11, 12}}, {.max_new_tokens = 2});
  run(decoder, {{11, 12, 13, 14, 15}}, {.max_new_tokens = 1});
  EXPECT_EQ(model.calls, (std::vector<std::string>{"0:0+2", "0:2+1", "0:0+5"}));
}

// Goal: a sequence that would not fit a slot is not begun.
TEST(Decoder, RefusesASequenceThatIsTooLong) {
  MadeUpModel model(1);
  Decoder decoder(limits(1, 64), std::ref(model));
  EXPECT_THROW(run(decoder, {std::vector<TokenId>(97, 1)}, {.max_new_tokens = 4}), CheckFailure);
  EXPECT_TRUE(model.calls.empty());
}

// Goal: scores that are not finite end their sequence alone.
TEST(Decoder, EndsASequenceWithoutFiniteScores) {
  MadeUpModel model(2);
  Decoder decoder(limits(2, 64), [&](const DecodeCall& call) {
    at::Tensor scores = model(call);
    if (call.continued.slots.front().value == 0) scores[0].fill_(NAN);
    return scores;
  });
  const Answered found = run(decoder, {{1}, {7}});
  EXPECT_EQ(found.finishes, (std::vector{Finish::kNonFinite, Finish::kStop}));
  EXPECT_EQ(found.answers, (Prompts{{}, {8, 9, kEnd}}));
}

}  // namespace
}  // namespace longshore
