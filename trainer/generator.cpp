#include "trainer/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.h"
#include "base/philox.h"

namespace longshore {
namespace {

// All prompts that still grow, end to end, as one micro-batch.
struct GrowingBatch {
  std::vector<int64_t> tokens, positions, targets, starts, last_positions;
  std::vector<size_t> prompts;
};

GrowingBatch join_growing(const std::vector<std::vector<TokenId>>& texts,
                          const std::vector<Generated>& results) {
  GrowingBatch batch;
  batch.starts.push_back(0);
  for (size_t i = 0; i < texts.size(); ++i) {
    if (results[i].ended) continue;
    for (size_t t = 0; t < texts[i].size(); ++t) {
      batch.tokens.push_back(texts[i][t]);
      batch.positions.push_back(static_cast<int64_t>(t));
    }
    batch.starts.push_back(static_cast<int64_t>(batch.tokens.size()));
    batch.last_positions.push_back(static_cast<int64_t>(batch.tokens.size()) - 1);
    batch.prompts.push_back(i);
  }
  batch.targets.assign(batch.tokens.size(), -100);
  return batch;
}

at::Tensor next_scores(Engine& engine, const GrowingBatch& batch) {
  const HostBatch view{.tokens = batch.tokens,
                       .positions = batch.positions,
                       .targets = batch.targets,
                       .document_starts = batch.starts};
  const std::span<const MicroBatch> loaded = engine.batches().load({&view, 1});
  return engine.logits(loaded[0], at::tensor(batch.last_positions, at::kLong));
}

std::vector<std::vector<TokenId>> encode_prompts(const Engine& engine, const Tokenizer& tokenizer,
                                                 const GenerateRequest& request) {
  std::vector<std::vector<TokenId>> texts;
  int64_t positions = 0;
  for (const std::string& prompt : request.prompts) {
    texts.push_back(tokenizer.encode(prompt, SpecialTokens::kAdd));
    if (texts.back().empty()) throw ConfigError("--prompt: the text has no tokens");
    positions += static_cast<int64_t>(texts.back().size()) + request.max_new_tokens;
  }
  if (positions > engine.plan().positions) {
    throw ConfigError("generate: " + std::to_string(positions) +
                      " positions of prompts and new tokens, the "
                      "plan has " +
                      std::to_string(engine.plan().positions) +
                      "; raise data.max_tokens or train.micro_batch, or lower --max-new-tokens");
  }
  return texts;
}

}  // namespace

TokenId pick_token(std::span<const float> scores, double temperature, int64_t top_k, uint64_t seed,
                   uint32_t prompt, uint32_t position) {
  const auto best = static_cast<TokenId>(std::ranges::max_element(scores) - scores.begin());
  if (temperature <= 0.0) return best;
  std::vector<TokenId> candidates(scores.size());
  std::iota(candidates.begin(), candidates.end(), 0);
  // Equal scores stay in the order of ids, so that the choice is the same everywhere.
  std::ranges::stable_sort(candidates, [&](TokenId a, TokenId b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  if (top_k > 0 && static_cast<size_t>(top_k) < candidates.size()) {
    candidates.resize(static_cast<size_t>(top_k));
  }
  const double top = scores[static_cast<size_t>(best)];
  std::vector<double> cumulative;
  double sum = 0.0;
  for (TokenId token : candidates) {
    sum += std::exp((scores[static_cast<size_t>(token)] - top) / temperature);
    cumulative.push_back(sum);
  }
  const auto random = philox4x32({prompt, position, 0, 0},
                                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const double target = (random[0] + 0.5) / 4294967296.0 * sum;
  const auto found = std::ranges::upper_bound(cumulative, target);
  const auto index =
      std::min(static_cast<size_t>(found - cumulative.begin()), candidates.size() - 1);
  return candidates[index];
}

std::vector<Generated> generate(Engine& engine, const Tokenizer& tokenizer,
                                const GenerateRequest& request) {
  std::vector<std::vector<TokenId>> texts = encode_prompts(engine, tokenizer, request);
  std::vector<size_t> prompt_tokens;
  std::vector<Generated> results;
  for (size_t i = 0; i < texts.size(); ++i) {
    prompt_tokens.push_back(texts[i].size());
    results.push_back({.prompt = request.prompts[i], .text = "", .new_tokens = 0, .ended = false});
  }
  for (int64_t round = 0; round < request.max_new_tokens; ++round) {
    const GrowingBatch batch = join_growing(texts, results);
    if (batch.prompts.empty()) break;
    const at::Tensor scores = next_scores(engine, batch).to(at::kCPU).contiguous();
    const auto width = static_cast<size_t>(scores.size(1));
    for (size_t row = 0; row < batch.prompts.size(); ++row) {
      const size_t i = batch.prompts[row];
      const std::span<const float> row_scores(scores.const_data_ptr<float>() + row * width, width);
      const TokenId token =
          pick_token(row_scores, request.temperature, request.top_k, request.seed,
                     static_cast<uint32_t>(i), static_cast<uint32_t>(texts[i].size()));
      results[i].ended = std::ranges::count(tokenizer.stop_ids(), token) > 0;
      if (!results[i].ended) texts[i].push_back(token);
    }
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::span<const TokenId> added = std::span(texts[i]).subspan(prompt_tokens[i]);
    results[i].new_tokens = static_cast<int64_t>(added.size());
    results[i].text = tokenizer.decode(added);
  }
  return results;
}

}  // namespace longshore
