// Decoder: continues any number of prompts with the slots that the plan has for states of
// sequences, as continuous batching does. Each call of the model computes the next row of every
// sequence that has its prompt, and prompts, or parts of them, as far as the call has rows left. A
// sequence that ends frees its slot, which the next prompt takes in the same round; none is ever
// evicted. Owned by the caller; the engine's thread.
//
// [Note: tokens of a sequence] A sequence's tokens depend on its prompt, the settings and its
// DrawKey alone: mixers continue each sequence row by row ([Note: one way to continue]), and a draw
// reads one row of scores. So neither the number of slots nor the other sequences change them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/batch.h"
#include "model/units/sequence_states.h"
#include "trainer/use/sampling.h"

namespace longshore {

// One call of the model: new rows of sequences, one document each.
struct DecodeCall {
  Batch batch;
  ContinuedSequences continued;      // without `states`, which the callee sets
  std::vector<int64_t> last_rows{};  // the rows whose next-token scores are wanted; at least one
};

// Returns fp32 [last_rows, vocabulary].
using DecodeModel = std::function<at::Tensor(const DecodeCall& call)>;

struct DecodeLimits {
  int32_t slots = 1;                           // sequences at the same time
  int64_t longest = 1;                         // tokens of a sequence, prompt and answer together
  int64_t positions = 1;                       // rows of one call; at least `slots`
  std::optional<int64_t> restart_length = {};  // Model::restart_length
};

// The sequences of one prompt.
struct DecodeRequest {
  std::vector<TokenId> tokens;  // the prompt; at least one, with the new ones at most `longest`
  uint64_t prompt = 0;          // with `sample` the sequence's part of DrawKey
  uint32_t sample = 0;
};

enum class Finish : uint8_t {
  kStop,       // one of DecodeSettings::stops
  kLength,     // max_new_tokens
  kText,       // on_token
  kNonFinite,  // scores are not finite
};

struct DecodeSettings {
  std::vector<TokenId> stops = {};  // tokens that end an answer
  int64_t max_new_tokens = 64;
  Sampling sampling = {};
  bool with_logps = false;
  // Called with each new token of the request of this number (in the order of requests), except one
  // of `stops`: `added` has all tokens of the answer. Returns whether the answer ends here. May be
  // empty.
  std::function<bool(int64_t request, std::span<const TokenId> added)> on_token = {};
};

struct Decoded {
  std::vector<TokenId> tokens = {};  // of the answer; the last one may be one of `stops`
  std::vector<float> logps = {};     // of each token, if asked for
  Finish finish = Finish::kLength;
};

class Decoder {
 public:
  Decoder(const DecodeLimits& limits, DecodeModel model);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Takes requests from `next` until it returns none, as slots become free, and gives the answers
  // to `done` in the order of requests. Answers that wait for an earlier one are kept until then.
  void run(const DecodeSettings& settings,
           const std::function<std::optional<DecodeRequest>()>& next,
           const std::function<void(Decoded)>& done);

  // Work counts what was done since the decoder was made.
  struct Work {
    int64_t prompt_rows = 0;  // computed tokens of prompts; not those that a state had already
    int64_t tokens = 0;       // drawn
  };
  const Work& work() const { return work_; }

 private:
  struct Sequence {
    DecodeRequest request;
    int64_t number = 0;  // in the order of requests
    Decoded answer = {};
  };
  // A slot keeps the state of its last sequence when that has ended. A prompt that begins with
  // these tokens, as the next turn of a conversation does, continues it.
  struct Slot {
    std::optional<Sequence> sequence = {};
    std::vector<TokenId> tokens = {};  // of the sequence, prompt and answer so far
    int64_t computed = 0;              // leading tokens that its state has
  };

  void admit(const std::function<std::optional<DecodeRequest>()>& next);
  size_t slot_for(std::span<const TokenId> prompt) const;
  bool continues(const Slot& slot, std::span<const TokenId> prompt) const;
  void begin(Slot& slot, Sequence sequence);
  // Adds rows of the slots' sequences to a call; returns the slots whose last row is wanted.
  std::vector<size_t> fill(DecodeCall& call);
  void add_rows(size_t slot, int64_t count, DecodeCall& call);
  void take(Slot& slot, const Drawn& drawn, const DecodeSettings& settings);
  void end(Slot& slot, Finish finish);

  DecodeLimits limits_;
  DecodeModel model_;
  std::vector<Slot> slots_;
  int64_t requests_ = 0;                      // of this run, taken
  std::map<int64_t, Decoded> finished_ = {};  // by number, which wait for an earlier one
  Work work_ = {};
};

}  // namespace longshore
