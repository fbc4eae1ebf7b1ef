#include "trainer/use/decoder.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "data/tokens/dataset.h"

namespace longshore {

Decoder::Decoder(const DecodeLimits& limits, DecodeModel model)
    : limits_(limits), model_(std::move(model)), slots_(static_cast<size_t>(limits.slots)) {
  LONGSHORE_CHECK(limits.slots > 0 && limits.positions >= limits.slots)
      << limits.slots << " slots, " << limits.positions << " positions";
}

void Decoder::run(const DecodeSettings& settings,
                  const std::function<std::optional<DecodeRequest>()>& next,
                  const std::function<void(Decoded)>& done) {
  requests_ = 0;
  int64_t given = 0;
  bool more = true;
  const auto take_next = [&]() -> std::optional<DecodeRequest> {
    std::optional<DecodeRequest> request = more ? next() : std::nullopt;
    more = request.has_value();
    if (request) {
      const int64_t most = limits_.longest - settings.max_new_tokens;
      LONGSHORE_CHECK(!request->tokens.empty() && std::ssize(request->tokens) <= most)
          << request->tokens.size() << " tokens, " << settings.max_new_tokens << " new ones, "
          << limits_.longest << " of a sequence";
    }
    return request;
  };
  while (true) {
    admit(take_next);
    DecodeCall call{.batch = Batch({}, {}, {}, {0}), .continued = {}};
    const std::vector<size_t> wanted = fill(call);
    if (call.batch.token_count() == 0) break;
    const at::Tensor scores = model_(call);
    if (wanted.empty()) continue;
    std::vector<DrawKey> keys;
    for (const size_t slot : wanted) {
      const Slot& one = slots_[slot];
      const DecodeRequest& request = one.sequence->request;
      keys.push_back({.prompt = request.prompt,
                      .sample = request.sample,
                      .position = static_cast<uint32_t>(one.tokens.size())});
    }
    const std::vector<Drawn> drawn =
        draw_tokens(scores, keys, settings.sampling, settings.with_logps);
    for (size_t i = 0; i < wanted.size(); ++i) take(slots_[wanted[i]], drawn[i], settings);
    while (!finished_.empty() && finished_.begin()->first == given) {
      done(std::move(finished_.extract(finished_.begin()).mapped()));
      ++given;
    }
  }
  LONGSHORE_CHECK(finished_.empty() && given == requests_);
}

void Decoder::admit(const std::function<std::optional<DecodeRequest>()>& next) {
  const auto is_free = [](const Slot& slot) { return !slot.sequence; };
  while (std::ranges::any_of(slots_, is_free)) {
    std::optional<DecodeRequest> request = next();
    if (!request) return;
    Slot& slot = slots_[slot_for(request->tokens)];
    begin(slot, {.request = std::move(*request), .number = requests_++});
  }
}

// Returns the free slot whose state has most of the prompt; of several, the first.
size_t Decoder::slot_for(std::span<const TokenId> prompt) const {
  std::optional<size_t> found;
  const auto kept = [&](const Slot& slot) { return continues(slot, prompt) ? slot.computed : 0; };
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].sequence) continue;
    if (!found || kept(slots_[i]) > kept(slots_[*found])) found = i;
  }
  return found.value();
}

// Returns whether the slot's state is that of a beginning of the prompt, of which at least one
// token is left to compute.
bool Decoder::continues(const Slot& slot, std::span<const TokenId> prompt) const {
  if (slot.computed == 0 || slot.computed >= std::ssize(prompt)) return false;
  const int64_t restart = limits_.restart_length.value_or(std::ssize(prompt));
  if (slot.computed <= restart && restart < std::ssize(prompt)) return false;
  return std::ranges::equal(std::span(slot.tokens).first(static_cast<size_t>(slot.computed)),
                            prompt.first(static_cast<size_t>(slot.computed)));
}

void Decoder::begin(Slot& slot, Sequence sequence) {
  if (!continues(slot, sequence.request.tokens)) slot.computed = 0;
  slot.tokens = sequence.request.tokens;
  slot.sequence = std::move(sequence);
}

std::vector<size_t> Decoder::fill(DecodeCall& call) {
  const auto left = [](const Slot& slot) {
    return slot.sequence ? std::ssize(slot.tokens) - slot.computed : 0;
  };
  // Sequences that have their prompt come first, so that a prompt delays none of them.
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (left(slots_[i]) == 1) add_rows(i, 1, call);
  }
  std::vector<size_t> prompts;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (left(slots_[i]) > 1) prompts.push_back(i);
  }
  std::ranges::sort(prompts, {}, [this](size_t slot) { return slots_[slot].sequence->number; });
  for (const size_t slot : prompts) {
    const int64_t room = limits_.positions - call.batch.token_count();
    if (room > 0) add_rows(slot, std::min(room, left(slots_[slot])), call);
  }
  std::vector<size_t> wanted;
  for (size_t document = 0; document < call.continued.slots.size(); ++document) {
    const auto slot = static_cast<size_t>(call.continued.slots[document].value);
    if (left(slots_[slot]) > 0) continue;
    wanted.push_back(slot);
    call.last_rows.push_back(call.batch.document_starts[document + 1] - 1);
  }
  // A call of parts of prompts has no use for scores, but computes those of a row.
  if (call.last_rows.empty()) call.last_rows.push_back(0);
  return wanted;
}

void Decoder::add_rows(size_t slot, int64_t count, DecodeCall& call) {
  Slot& one = slots_[slot];
  call.continued.slots.emplace_back(static_cast<int32_t>(slot));
  call.continued.before.push_back(one.computed);
  call.continued.lengths.push_back(std::ssize(one.tokens));
  for (int64_t t = one.computed; t < one.computed + count; ++t) {
    call.batch.tokens().push_back(one.tokens[static_cast<size_t>(t)]);
    call.batch.positions().push_back(t);
    call.batch.targets().push_back(kNotTrained);
  }
  call.batch.document_starts.push_back(call.batch.token_count());
  const int64_t asked = std::ssize(one.sequence->request.tokens);
  work_.prompt_rows += std::clamp<int64_t>(asked - one.computed, 0, count);
  one.computed += count;
}

void Decoder::take(Slot& slot, const Drawn& drawn, const DecodeSettings& settings) {
  if (!drawn.finite) return end(slot, Finish::kNonFinite);
  ++work_.tokens;
  Decoded& answer = slot.sequence->answer;
  answer.tokens.push_back(drawn.token);
  if (settings.with_logps) answer.logps.push_back(drawn.logp);
  if (std::ranges::count(settings.stops, drawn.token) > 0) return end(slot, Finish::kStop);
  const int64_t number = slot.sequence->number;
  if (settings.on_token && settings.on_token(number, answer.tokens)) {
    return end(slot, Finish::kText);
  }
  if (std::ssize(answer.tokens) >= settings.max_new_tokens) return end(slot, Finish::kLength);
  slot.tokens.push_back(drawn.token);
  // The state was computed for a text that does not grow beyond this length.
  const std::optional<int64_t> restart = limits_.restart_length;
  if (restart && slot.computed <= *restart && *restart < std::ssize(slot.tokens)) slot.computed = 0;
}

void Decoder::end(Slot& slot, Finish finish) {
  slot.sequence->answer.finish = finish;
  finished_.emplace(slot.sequence->number, std::move(slot.sequence->answer));
  slot.sequence.reset();
  // The scores of a state that is not finite may infect each sequence that continues it.
  if (finish == Finish::kNonFinite) slot.computed = 0;
}

}  // namespace longshore
