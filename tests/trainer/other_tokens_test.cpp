// Tokens that files of Axolotl and LLaMA-Factory add to the tokenizer.
#include <string>
#include <vector>

#include "tests/trainer/other_files.h"

namespace longshore {
namespace {

class OtherTokens : public OtherFiles {};

constexpr const char* kAxolotl =
    "base_model: m\ndatasets: [{path: own.jsonl, type: chat_template}]\nadapter: lora\n";
constexpr const char* kFactory =
    "model_name_or_path: m\nstage: sft\ndataset: own.jsonl\ntemplate: qwen\n";

// Goal: added tokens are those of the run file, special ones apart; what their rows need is named.
TEST_F(OtherTokens, AreThoseOfTheRunFile) {
  using Texts = std::vector<std::string>;
  const ConvertedRun axolotl = converted(std::string(kAxolotl) + "tokens: [<a>, <b>, <a>]\n");
  const RunConfig config = load_run_config({}, axolotl.draft.overrides());
  EXPECT_EQ(config.tokenizer.add_tokens, (Texts{"<a>", "<b>"}));
  EXPECT_EQ(config.tokenizer.add_special_tokens, Texts());
  EXPECT_TRUE(has(why(axolotl.left, "tokens"), "adapter.train"));
  const ConvertedRun saved = converted(
      std::string(kAxolotl) + "tokens: [<a>]\nlora_modules_to_save: [embed_tokens, lm_head]\n");
  EXPECT_EQ(why(saved.left, "tokens"), "");
  EXPECT_TRUE(has(refusal_of(std::string(kAxolotl) + "added_tokens_overrides: {5: <a>}\n"),
                  "tokens of the vocabulary are not renamed"));
  const std::string tokens = "add_tokens: <a>, <b>\nadd_special_tokens: <b>,<c>\n";
  const ConvertedRun factory =
      converted(std::string(kFactory) + tokens + "finetuning_type: full\nresize_vocab: true\n");
  const RunConfig run = load_run_config({}, factory.draft.overrides());
  EXPECT_EQ(run.tokenizer.add_tokens, Texts{"<a>"});
  EXPECT_EQ(run.tokenizer.add_special_tokens, (Texts{"<b>", "<c>"}));
  EXPECT_TRUE(has(why(factory.needless, "resize_vocab"), "the mean of the others"));
  EXPECT_EQ(why(factory.left, "resize_vocab"), "");
  EXPECT_TRUE(has(why(converted(std::string(kFactory) + tokens).left, "resize_vocab"),
                  "of a tied model the embedding alone"));
}

}  // namespace
}  // namespace longshore
