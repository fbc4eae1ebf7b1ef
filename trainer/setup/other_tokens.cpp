// The tokens that a file of Axolotl or LLaMA-Factory adds to the tokenizer.
#include <algorithm>
#include <string>
#include <vector>

#include "config/toml_document.h"
#include "trainer/setup/other_findings.h"

namespace longshore {
namespace {

class TokensReader {
 public:
  TokensReader(const Json& file, std::string_view trainer)
      : axolotl_(trainer == "Axolotl"), in_(file, found_) {}

  OtherFindings read() {
    if (axolotl_) {
      take("tokens", ordinary_);
    } else {
      take("add_special_tokens", special_);
      take("new_special_tokens", special_);
      take("add_tokens", ordinary_);
      std::erase_if(ordinary_, [this](const std::string& token) {
        return std::ranges::find(special_, token) != special_.end();
      });
    }
    if (!ordinary_.empty()) in_.set("tokenizer.add_tokens", toml_list(ordinary_));
    if (!special_.empty()) in_.set("tokenizer.add_special_tokens", toml_list(special_));
    note_rows();
    return std::move(found_);
  }

 private:
  void take(const char* name, std::vector<std::string>& texts) {
    for (const std::string& token : in_.list(name)) {
      if (std::ranges::find(texts, token) == texts.end()) texts.push_back(token);
    }
  }

  // LLaMA-Factory trains the embedding and the head under an adapter by itself, and Axolotl asks
  // for lora_modules_to_save. A tied model has one module for both, which their files do not say.
  void note_rows() {
    const bool adapts =
        axolotl_ ? in_.has("adapter")
                 : !in_.has("finetuning_type") || in_.file().at("finetuning_type") == "lora";
    const bool named = in_.has("lora_modules_to_save") || in_.has("additional_target");
    if ((ordinary_.empty() && special_.empty()) || !adapts || named) return;
    in_.left(axolotl_ ? "tokens" : "resize_vocab",
             "under an adapter the rows of new tokens are trained if adapter.train names the "
             "embedding and the head ([\"embed_tokens\", \"lm_head\"]; of a tied model the "
             "embedding alone)",
             "adapter.train");
  }

  const bool axolotl_;
  OtherFindings found_;
  OtherReader in_;
  std::vector<std::string> ordinary_, special_;
};

}  // namespace

OtherFindings read_other_tokens(const Json& file, std::string_view trainer) {
  if (trainer == "TRL") return {};
  return TokensReader(file, trainer).read();
}

}  // namespace longshore
