#include "trainer/use/generator.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

DecodeModel model_of(Engine* engine) {
  return [engine](const DecodeCall& call) {
    ContinuedSequences continued = call.continued;
    continued.states = engine->sequence_states();
    MicroBatch batch = engine->batches().load({&call.batch, 1}).front();
    batch.continued = &continued;
    return engine->logits(batch, at::tensor(call.last_rows, at::kLong));
  };
}

DecodeLimits limits_of(Engine& engine, const Model& model) {
  const SequenceStates* const states = engine.sequence_states();
  LONGSHORE_CHECK(states != nullptr) << "the plan decodes no sequences";
  const int64_t positions = engine.plan().step.positions;
  return {.slots = static_cast<int32_t>(std::min<int64_t>(states->sequences(), positions)),
          .longest = states->longest(),
          .positions = positions,
          .restart_length = model.restart_length()};
}

}  // namespace

int64_t vocabulary_of(const ModelSpec& spec) {
  return spec.units.front().parameters.front().whole().shape.front();
}

std::string problem_of(const Prompt& prompt, int64_t max_new_tokens, const PromptLimits& limits) {
  const std::string name = "the prompt '" + printable(prompt.text, 40) + "'";
  if (prompt.tokens.empty()) return name + " has no tokens";
  for (const TokenId token : prompt.tokens) {
    if (token >= 0 && token < limits.vocabulary) continue;
    return name + " has the token " + std::to_string(token) + ", the model has " +
           std::to_string(limits.vocabulary) + "; the tokenizer is not this model's";
  }
  const int64_t tokens = std::ssize(prompt.tokens);
  if (max_new_tokens <= limits.longest - tokens) return {};
  return name + " has " + std::to_string(tokens) + " tokens, with " +
         std::to_string(max_new_tokens) + " new ones more than the " +
         std::to_string(limits.longest) +
         " of a sequence; raise data.max_tokens, or lower the number of new tokens "
         "(--max-new-tokens, eval.max_new_tokens)";
}

Generator::Generator(Engine* engine, const Model* model, const Tokenizer* tokenizer)
    : tokenizer_(tokenizer),
      limits_{.longest = limits_of(*engine, *model).longest,
              .vocabulary = vocabulary_of(model->spec())},
      decoder_(limits_of(*engine, *model), model_of(engine)) {}

void Generator::run(const GenerateSettings& settings, const NextPrompt& next, const Done& done,
                    int64_t first) {
  texts_.clear();
  std::optional<Prompt> prompt;
  int64_t asked = 0;  // answers, among them those before `first`
  const auto next_request = [&]() -> std::optional<DecodeRequest> {
    do {
      if (asked % settings.samples == 0) prompt = next();
      if (!prompt) return std::nullopt;
    } while (asked++ < first);
    const std::string problem = problem_of(*prompt, settings.max_new_tokens, limits_);
    if (!problem.empty()) throw ConfigError(problem);
    const int64_t answer = asked - 1;
    return DecodeRequest{.tokens = prompt->tokens,
                         .prompt = static_cast<uint64_t>(answer / settings.samples),
                         .sample = static_cast<uint32_t>(answer % settings.samples)};
  };
  DecodeSettings decoding{.stops = settings.stops,
                          .max_new_tokens = settings.max_new_tokens,
                          .sampling = settings.sampling,
                          .with_logps = settings.with_logps};
  if (settings.on_text || !settings.stop_strings.empty()) {
    decoding.on_token = [&](int64_t request, std::span<const TokenId> added) {
      AnswerText& text = text_of(first + request, settings);
      const std::string piece = text.take(added);
      if (settings.on_text && !piece.empty()) settings.on_text(first + request, piece);
      return text.stopped();
    };
  }
  int64_t answer = first;
  decoder_.run(decoding, next_request, [&](Decoded decoded) {
    done(answer, finished(answer, std::move(decoded), settings));
    ++answer;
  });
}

std::vector<Answer> Generator::run(const GenerateSettings& settings,
                                   const std::vector<Prompt>& prompts) {
  std::vector<Answer> answers;
  size_t given = 0;
  run(
      settings,
      [&]() -> std::optional<Prompt> {
        if (given == prompts.size()) return std::nullopt;
        return prompts[given++];
      },
      [&](int64_t, Answer answer) { answers.push_back(std::move(answer)); });
  return answers;
}

AnswerText& Generator::text_of(int64_t answer, const GenerateSettings& settings) {
  return texts_.try_emplace(answer, tokenizer_, settings.stop_strings).first->second;
}

Answer Generator::finished(int64_t answer, Decoded decoded, const GenerateSettings& settings) {
  std::span<const TokenId> added = decoded.tokens;
  if (decoded.finish == Finish::kStop) added = added.first(added.size() - 1);
  AnswerText& text = text_of(answer, settings);
  AnswerText::Whole whole = text.whole(added);
  Answer result{.text = {},
                .rest = text.rest(whole),
                .tokens = {},
                .logps = std::move(decoded.logps),
                .new_tokens = std::ssize(added),
                .finish = decoded.finish};
  if (whole.stopped && result.finish != Finish::kNonFinite) result.finish = Finish::kText;
  texts_.erase(answer);
  result.text = std::move(whole.text);
  result.tokens = std::move(decoded.tokens);
  return result;
}

}  // namespace longshore
