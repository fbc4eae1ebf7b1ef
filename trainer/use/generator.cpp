#include "trainer/use/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/batch.h"
#include "base/errors.h"
#include "base/random.h"
#include "base/texts.h"
#include "data/tokens/dataset.h"

namespace longshore {
namespace {

// A micro-batch of concatenated texts that each get one more token.
struct GrowingBatch {
  Batch batch{{}, {}, {}, {0}};
  std::vector<int64_t> last_positions;
  std::vector<size_t> prompts;

  void add(size_t prompt, const std::vector<TokenId>& text) {
    for (size_t t = 0; t < text.size(); ++t) {
      batch.tokens().push_back(text[t]);
      batch.positions().push_back(static_cast<int64_t>(t));
      batch.targets().push_back(kNotTrained);
    }
    batch.document_starts.push_back(batch.token_count());
    last_positions.push_back(batch.token_count() - 1);
    prompts.push_back(prompt);
  }
};

// Packs all unfinished texts into micro-batches of at most `most` positions.
std::vector<GrowingBatch> join_growing(const std::vector<std::vector<TokenId>>& texts,
                                       const std::vector<Generated>& results, int64_t most) {
  std::vector<GrowingBatch> batches;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (results[i].ended) continue;
    const int64_t needed = std::ssize(texts[i]);
    if (batches.empty() || batches.back().batch.token_count() + needed > most) {
      batches.emplace_back();
    }
    batches.back().add(i, texts[i]);
  }
  return batches;
}

at::Tensor next_scores(Engine& engine, const GrowingBatch& growing) {
  const std::span<const MicroBatch> loaded = engine.batches().load({&growing.batch, 1});
  return engine.logits(loaded[0], at::tensor(growing.last_positions, at::kLong));
}

// Returns the number of rows of the embedding.
int64_t vocabulary_of(const Engine& engine) {
  return engine.spec().units.front().parameters.front().whole().shape.front();
}

void check_prompts(const Engine& engine, const GenerateRequest& request) {
  const int64_t rows = vocabulary_of(engine);
  const int64_t longest = std::min(request.longest, engine.plan().step.positions);
  for (const Prompt& prompt : request.prompts) {
    const std::string name = "the prompt '" + printable(prompt.text, 40) + "'";
    if (prompt.tokens.empty()) throw ConfigError(name + " has no tokens");
    for (const TokenId token : prompt.tokens) {
      if (token >= 0 && token < rows) continue;
      throw ConfigError(name + " has the token " + std::to_string(token) + ", the model has " +
                        std::to_string(rows) + "; the tokenizer is not this model's");
    }
    const auto tokens = static_cast<int64_t>(prompt.tokens.size());
    if (request.max_new_tokens <= longest - tokens) continue;
    throw ConfigError(name + " has " + std::to_string(tokens) + " tokens, with " +
                      std::to_string(request.max_new_tokens) + " new ones more than the " +
                      std::to_string(longest) +
                      " of a sequence; raise data.max_tokens, or lower the number of new tokens "
                      "(--max-new-tokens, eval.max_new_tokens)");
  }
}

// The candidates that top_k and top_p leave, likeliest first, with cumulative weights.
struct Candidates {
  std::vector<TokenId> tokens;
  std::vector<double> sums;
};

Candidates candidates_of(std::span<const float> scores, const Sampling& sampling) {
  Candidates found;
  found.tokens.resize(scores.size());
  std::iota(found.tokens.begin(), found.tokens.end(), 0);
  // Equal scores stay in the order of ids, so the choice is equal on all machines.
  std::ranges::stable_sort(found.tokens, [&](TokenId a, TokenId b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  if (sampling.top_k > 0 && static_cast<size_t>(sampling.top_k) < found.tokens.size()) {
    found.tokens.resize(static_cast<size_t>(sampling.top_k));
  }
  const double top = scores[static_cast<size_t>(found.tokens.front())];
  double sum = 0.0;
  for (const TokenId token : found.tokens) {
    sum += std::exp((scores[static_cast<size_t>(token)] - top) / sampling.temperature);
    found.sums.push_back(sum);
  }
  if (sampling.top_p < 1.0) {
    const auto last = std::ranges::lower_bound(found.sums, sampling.top_p * sum);
    const auto kept =
        std::min(static_cast<size_t>(last - found.sums.begin()) + 1, found.sums.size());
    found.tokens.resize(kept);
    found.sums.resize(kept);
  }
  return found;
}

bool all_finite(std::span<const float> scores) {
  return std::ranges::all_of(scores, [](float score) { return std::isfinite(score); });
}

// Adds a token to each text of the batch, or ends the text.
void grow(const GrowingBatch& batch, const at::Tensor& device_scores,
          const GenerateRequest& request, std::vector<std::vector<TokenId>>& texts,
          std::vector<Generated>& results) {
  const at::Tensor scores = device_scores.to(at::kCPU).contiguous();
  const auto width = static_cast<size_t>(scores.size(1));
  for (size_t row = 0; row < batch.prompts.size(); ++row) {
    const size_t i = batch.prompts[row];
    const std::span<const float> own(scores.const_data_ptr<float>() + row * width, width);
    results[i].nonfinite = !all_finite(own);
    results[i].ended = results[i].nonfinite;
    if (results[i].ended) continue;
    const TokenId token = pick_token(own, request.sampling, static_cast<uint32_t>(i),
                                     static_cast<uint32_t>(texts[i].size()));
    results[i].ended = std::ranges::count(request.stops, token) > 0;
    if (results[i].ended) continue;
    texts[i].push_back(token);
    const size_t asked = request.prompts[i].tokens.size();
    if (request.on_token) request.on_token(i, std::span(texts[i]).subspan(asked));
  }
}

}  // namespace

TokenId pick_token(std::span<const float> scores, const Sampling& sampling, uint32_t prompt,
                   uint32_t position) {
  if (sampling.temperature <= 0.0) {
    return static_cast<TokenId>(std::ranges::max_element(scores) - scores.begin());
  }
  const Candidates candidates = candidates_of(scores, sampling);
  const uint64_t seed = sampling.seed;
  const auto random = philox4x32({prompt, position, 0, 0},
                                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const double target = (random[0] + 0.5) / 4294967296.0 * candidates.sums.back();
  const auto found = std::ranges::upper_bound(candidates.sums, target);
  const auto index =
      std::min(static_cast<size_t>(found - candidates.sums.begin()), candidates.tokens.size() - 1);
  return candidates.tokens[index];
}

std::string TextStream::take(std::span<const TokenId> added) {
  static constexpr std::string_view kUnfinished = "\xEF\xBF\xBD";  // U+FFFD
  std::string text = tokenizer_->decode(added);
  while (text.ends_with(kUnfinished)) text.resize(text.size() - kUnfinished.size());
  return rest(text);
}

std::string TextStream::rest(const std::string& text) {
  if (text.size() <= returned_) return {};
  const size_t from = std::exchange(returned_, text.size());
  return text.substr(from);
}

std::vector<Generated> generate(Engine& engine, const Tokenizer& tokenizer,
                                const GenerateRequest& request) {
  check_prompts(engine, request);
  std::vector<std::vector<TokenId>> texts;
  std::vector<Generated> results;
  for (const Prompt& prompt : request.prompts) {
    texts.push_back(prompt.tokens);
    results.push_back({.prompt = prompt.text, .text = "", .new_tokens = 0, .ended = false});
  }
  for (int64_t round = 0; round < request.max_new_tokens; ++round) {
    const std::vector<GrowingBatch> batches =
        join_growing(texts, results, engine.plan().step.positions);
    if (batches.empty()) break;
    for (const GrowingBatch& batch : batches) {
      grow(batch, next_scores(engine, batch), request, texts, results);
    }
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::span<const TokenId> added =
        std::span(texts[i]).subspan(request.prompts[i].tokens.size());
    results[i].new_tokens = static_cast<int64_t>(added.size());
    results[i].text = tokenizer.decode(added);
  }
  return results;
}

}  // namespace longshore
