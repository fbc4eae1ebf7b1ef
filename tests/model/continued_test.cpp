// Continuing sequences gives the logits of their whole forward, and the same bits however their
// positions are divided among calls and whatever other sequences a call has.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "base/errors.h"
#include "tests/model/golden_case.h"
#include "tests/model/plain_runner.h"

namespace longshore {
namespace {

// MKL repeats its bits for one shape only in strict mode, which it reads once.
const int kStrictMkl = setenv("MKL_CBWR", "AVX2,STRICT", 1);

// Sums over the positions of a recurrence and of attention, and products of one row, add in another
// order than chunks and products of many rows. The distance of two such orders in fp32 is that
// which transformers has from itself.
constexpr double kTolerance = 1e-5;

double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  const double norm = expected.to(at::kDouble).norm().item<double>();
  return (got.to(at::kDouble) - expected.to(at::kDouble)).norm().item<double>() / norm;
}

struct Loaded {
  GoldenCase golden;
  DecoderModel model;
  explicit Loaded(const std::string& name)
      : golden(read_golden_case(name)),
        model(golden.arch, make_model_spec(golden.arch, golden.file_tensors())) {}

  const std::vector<int64_t>& tokens(size_t row) const { return golden.rows.at(row).tokens; }
  StateUse use(at::ScalarType dtype) const { return {.longest = 24, .compute = dtype}; }
};

// Decodes texts over slots: it knows how much of each has been computed.
class Decoder {
 public:
  // Each text gets a slot. The arguments must outlive the decoder.
  Decoder(const PlainRunner& runner, PlainStates& states, std::vector<int32_t> slots,
          std::vector<std::vector<int64_t>> texts)
      : runner_(runner),
        states_(states),
        slots_(std::move(slots)),
        texts_(std::move(texts)),
        before_(texts_.size(), 0),
        logits_(texts_.size()) {}

  // Computes the next `counts[i]` positions of text i, or as many as it has, in one call.
  void call(const std::vector<int64_t>& counts) {
    std::vector<NextTokens> next;
    std::vector<size_t> chosen;
    for (size_t i = 0; i < texts_.size(); ++i) {
      const int64_t count = std::min(counts.at(i), std::ssize(texts_[i]) - before_[i]);
      if (count == 0) continue;
      const auto begin = texts_[i].begin() + before_[i];
      next.push_back({.slot = slots_[i],
                      .before = before_[i],
                      .tokens = {begin, begin + count},
                      .length = std::ssize(texts_[i])});
      chosen.push_back(i);
      before_[i] += count;
    }
    if (next.empty()) return;
    const std::vector<at::Tensor> logits = runner_.continued_logits(states_, next);
    for (size_t n = 0; n < chosen.size(); ++n) logits_[chosen[n]].push_back(logits[n]);
  }
  // Computes all texts, `piece` positions of each in a call.
  void finish(int64_t piece) {
    while (!done()) call(std::vector<int64_t>(texts_.size(), piece));
  }
  at::Tensor logits(size_t text) const { return at::cat(logits_.at(text)); }

 private:
  bool done() const {
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (before_[i] < std::ssize(texts_[i])) return false;
    }
    return true;
  }

  const PlainRunner& runner_;
  PlainStates& states_;
  std::vector<int32_t> slots_;
  std::vector<std::vector<int64_t>> texts_;
  std::vector<int64_t> before_;
  std::vector<std::vector<at::Tensor>> logits_;
};

// Tensors are tiny, so one thread computes them.
class Continued : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

// Goal: a text that is computed one position at a time, in pieces and as a whole has the logits of
// the whole forward at every position. It is longer than the windows, and than the original length
// of longrope. States begin as NaNs, so none is read before it is written.
TEST_P(Continued, LogitsAgreeWithTheWholeForward) {
  const Loaded loaded(GetParam());
  const PlainRunner runner(loaded.model, loaded.golden.weights, at::kFloat);
  const std::vector<int64_t>& text = loaded.tokens(0);
  ASSERT_EQ(text.size(), 24u);
  const at::Tensor whole = runner.logits(PlainRunner::make_batch({text}, {text}));
  double worst = 0.0;
  for (const int64_t piece : {1, 3, 7, 24}) {
    PlainStates states(loaded.model, 1, loaded.use(at::kFloat));
    Decoder decoder(runner, states, {0}, {text});
    decoder.finish(piece);
    const double error = relative_error(decoder.logits(0), whole);
    EXPECT_LE(error, kTolerance) << "pieces of " << piece;
    worst = std::max(worst, error);
  }
  RecordProperty("worst_relative_error", std::to_string(worst));
}

// Goal: texts of different lengths that are computed in one batch, in slots of any order, with the
// calls of prompts and of single positions mixed, have the logits of their whole forwards.
TEST_P(Continued, LogitsOfABatchAgreeWithWholeForwards) {
  const Loaded loaded(GetParam());
  const PlainRunner runner(loaded.model, loaded.golden.weights, at::kFloat);
  const std::vector<std::vector<int64_t>> texts{loaded.tokens(0), loaded.tokens(1),
                                                loaded.tokens(2), loaded.tokens(3)};
  PlainStates states(loaded.model, 5, loaded.use(at::kFloat));
  Decoder decoder(runner, states, {3, 0, 4, 1}, texts);
  decoder.call({5, 0, 17, 1});
  decoder.call({1, 2, 1, 7});
  decoder.finish(1);
  for (size_t i = 0; i < texts.size(); ++i) {
    const at::Tensor whole = runner.logits(PlainRunner::make_batch({texts[i]}, {texts[i]}));
    EXPECT_LE(relative_error(decoder.logits(i), whole), kTolerance) << i;
  }
}

// Returns the logits of a text that is computed alone, one position at a time.
at::Tensor alone(const Loaded& loaded, const PlainRunner& runner, at::ScalarType dtype,
                 size_t row) {
  PlainStates states(loaded.model, 1, loaded.use(dtype));
  Decoder decoder(runner, states, {0}, {loaded.tokens(row)});
  decoder.finish(1);
  return decoder.logits(0);
}

// Goal: no bit of a text depends on how its positions are divided among calls.
TEST_P(Continued, ADivisionIntoCallsChangesNoBit) {
  const Loaded loaded(GetParam());
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const PlainRunner runner(loaded.model, loaded.golden.weights, dtype);
    const at::Tensor expected = alone(loaded, runner, dtype, 0);
    for (const int64_t piece : {2, 3, 7, 24}) {
      PlainStates states(loaded.model, 1, loaded.use(dtype));
      Decoder decoder(runner, states, {0}, {loaded.tokens(0)});
      decoder.finish(piece);
      EXPECT_TRUE(at::equal(decoder.logits(0), expected)) << dtype << ", pieces of " << piece;
    }
  }
}

// Goal: no bit of a text depends on the other sequences of its calls, on their number or lengths,
// on its place among them, or on its slot, which another text has used before.
TEST_P(Continued, OtherSequencesChangeNoBit) {
  const Loaded loaded(GetParam());
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const PlainRunner runner(loaded.model, loaded.golden.weights, dtype);
    const std::vector<at::Tensor> expected{
        alone(loaded, runner, dtype, 0), alone(loaded, runner, dtype, 1),
        alone(loaded, runner, dtype, 2), alone(loaded, runner, dtype, 4)};
    PlainStates states(loaded.model, 6, loaded.use(dtype));
    const std::vector<std::vector<int64_t>> texts{loaded.tokens(0), loaded.tokens(1),
                                                  loaded.tokens(2), loaded.tokens(4)};
    for (const std::vector<int32_t>& slots :
         {std::vector<int32_t>{0, 1, 2, 3}, {3, 5, 0, 1}, {5, 4, 3, 2}}) {
      Decoder decoder(runner, states, slots, texts);
      decoder.call({6, 1, 0, 5});
      decoder.call({1, 1, 9, 1});
      decoder.finish(1);
      for (size_t i = 0; i < texts.size(); ++i) {
        EXPECT_TRUE(at::equal(decoder.logits(i), expected[i])) << dtype << ", text " << i;
      }
    }
  }
}

// Goal: with 64 sequences in a call, more than a kernel takes at once, the bits are those of one.
TEST_P(Continued, SixtyFourSequencesChangeNoBit) {
  const Loaded loaded(GetParam());
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const PlainRunner runner(loaded.model, loaded.golden.weights, dtype);
    const at::Tensor expected = alone(loaded, runner, dtype, 4);
    PlainStates states(loaded.model, 64, loaded.use(dtype));
    std::vector<int32_t> slots(64);
    std::iota(slots.begin(), slots.end(), 0);
    Decoder decoder(runner, states, slots, std::vector<std::vector<int64_t>>(64, loaded.tokens(4)));
    decoder.finish(4);
    for (size_t i = 0; i < slots.size(); ++i) {
      EXPECT_TRUE(at::equal(decoder.logits(i), expected)) << dtype << ", slot " << i;
    }
  }
}

// Goal: the number of threads changes no bit of a continued text.
TEST_P(Continued, TheNumberOfThreadsChangesNoBit) {
  const Loaded loaded(GetParam());
  const PlainRunner runner(loaded.model, loaded.golden.weights, at::kFloat);
  std::vector<at::Tensor> found;
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    PlainStates states(loaded.model, 3, loaded.use(at::kFloat));
    Decoder decoder(runner, states, {0, 1, 2},
                    {loaded.tokens(0), loaded.tokens(2), loaded.tokens(6)});
    decoder.finish(5);
    found.push_back(at::cat({decoder.logits(0), decoder.logits(1), decoder.logits(2)}));
  }
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(found[0], found[1]));
  EXPECT_TRUE(at::equal(found[0], found[2]));
}

INSTANTIATE_TEST_SUITE_P(Golden, Continued, testing::ValuesIn(golden_case_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Goal: a text that grows past the length at which longrope changes its factors has the logits of
// its whole forward if it is begun again, and other ones if it goes on with the keys of the short
// factors.
TEST(ContinuedLength, ATextThatPassesTheOriginalLengthBeginsAgain) {
  const Loaded loaded("phi3-long");
  const PlainRunner runner(loaded.model, loaded.golden.weights, at::kFloat);
  const std::optional<int64_t> limit = loaded.model.restart_length();
  ASSERT_TRUE(limit.has_value());
  const std::vector<int64_t>& all = loaded.tokens(0);
  const std::vector<int64_t> text(all.begin(), all.begin() + *limit + 3);
  const std::vector<int64_t> start(all.begin(), all.begin() + *limit);
  const std::vector<int64_t> rest(text.begin() + *limit, text.end());
  const at::Tensor whole = runner.logits(PlainRunner::make_batch({text}, {text}));
  const at::Tensor before = runner.logits(PlainRunner::make_batch({start}, {start}));
  PlainStates states(loaded.model, 1, loaded.use(at::kFloat));
  const at::Tensor first = runner.continued_logits(states, {{.slot = 0, .tokens = start}})[0];
  EXPECT_LE(relative_error(first, before), kTolerance);
  const at::Tensor gone_on =
      runner.continued_logits(states, {{.slot = 0, .before = *limit, .tokens = rest}})[0];
  EXPECT_GT(relative_error(gone_on, whole.slice(0, *limit)), 100 * kTolerance);
  const at::Tensor again = runner.continued_logits(states, {{.slot = 0, .tokens = text}})[0];
  EXPECT_LE(relative_error(again, whole), kTolerance);
}

// Goal: models whose rotation does not depend on the length of a text never begin again.
TEST(ContinuedLength, OnlyLongropeBeginsAgain) {
  EXPECT_FALSE(Loaded("llama").model.restart_length().has_value());
  EXPECT_FALSE(Loaded("gpt2").model.restart_length().has_value());
}

// Returns the shape of a layer's tensor, of 100 positions.
std::vector<int64_t> shape_of(const DecoderModel& model, size_t place, size_t tensor) {
  return model.layer_states({.longest = 100}).value().at(place).tensors.at(tensor).shape;
}

// Goal: a window keeps what it sees, a layer without a window all positions, and a text that is
// shorter than a window no more than that.
TEST(LayerStates, AWindowKeepsWhatItSees) {
  const Loaded loaded("gemma2");
  const ArchSpec& arch = loaded.golden.arch;
  ASSERT_EQ(arch.layers[0].window, 5);
  ASSERT_EQ(arch.layers[1].window, 0);
  EXPECT_EQ(shape_of(loaded.model, 0, 0), (std::vector<int64_t>{5, arch.key_width()}));
  EXPECT_EQ(shape_of(loaded.model, 1, 1), (std::vector<int64_t>{100, arch.key_width()}));
  const auto shorter = loaded.model.layer_states({.longest = 3, .compute = at::kBFloat16}).value();
  EXPECT_EQ(shorter.at(0).tensors.at(0).shape.at(0), 3);
  EXPECT_EQ(shorter.at(0).tensors.at(0).type, at::kBFloat16);
}

// Goal: layers that read the keys of another keep none. Those that are read are kept once, with all
// their positions although they have a window.
TEST(LayerStates, SharedKeysAreKeptOnce) {
  const Loaded loaded("gemma4_text-shared");
  const ArchSpec& arch = loaded.golden.arch;
  const auto states = loaded.model.layer_states({.longest = 100}).value();
  ASSERT_EQ(states.size(), arch.layers.size());
  int readers = 0, read_windows = 0;
  for (const LayerState& state : states) {
    const LayerSpec& layer = arch.layers.at(static_cast<size_t>(state.layer));
    if (layer.keys_of >= 0) {
      readers += 1;
      EXPECT_TRUE(state.tensors.empty()) << state.layer;
      continue;
    }
    const bool whole = layer.window == 0 || arch.gives_keys(state.layer);
    read_windows += layer.window > 0 && whole ? 1 : 0;
    EXPECT_EQ(state.tensors.at(0).shape.at(0), whole ? 100 : layer.window) << state.layer;
  }
  EXPECT_GT(readers, 0);
  EXPECT_GT(read_windows, 0);
}

// Goal: a sequence that has no room for its rows ends the call, before a byte beyond it is written.
TEST(LayerStates, ASequenceBeyondItsRoomIsAnError) {
  const Loaded loaded("llama");
  const PlainRunner runner(loaded.model, loaded.golden.weights, at::kFloat);
  PlainStates states(loaded.model, 1, {.longest = 4});
  runner.continued_logits(states, {{.slot = 0, .tokens = {1, 2, 3, 4}}});
  EXPECT_THROW(runner.continued_logits(states, {{.slot = 0, .before = 4, .tokens = {5}}}),
               CheckFailure);
}

}  // namespace
}  // namespace longshore
