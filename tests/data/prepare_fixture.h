// PrepareFixture: files of rows in a scratch directory, and `prepare` of them. One test owns it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"
#include "data/prepare/prepare.h"
#include "data/tokens/dataset.h"
#include "tests/data/scratch_files.h"
#include "text/tokenizer_trainer.h"

namespace longshore {

using Ids = std::vector<int64_t>;

// A tokenizer of bytes: eos is 0, '!' is 1, 'A' is 33, 'a' is 65.
inline const Tokenizer& letters() {
  static const Tokenizer tokenizer = [] {
    const TrainedTokenizer trained = byte_tokenizer({.eos_token = "</s>"});
    return Tokenizer::from_files(
        {.tokenizer = trained.tokenizer_json, .tokenizer_config = trained.tokenizer_config_json},
        "letters");
  }();
  return tokenizer;
}

// A chat template that gives "<user>question\n<assistant>answer</s>".
inline const ChatTemplate& plain_chat() {
  static const ChatTemplate chat = ChatTemplate::from_text(
      "{% for m in messages %}{% if m.role == 'user' and loop.index0 > 0 and "
      "messages[loop.index0 - 1].role == 'user' %}{{ raise_exception('two users in a row') }}"
      "{% endif %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}</s>{% endif %}{{ "
      "'\\n' }}"
      "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
      letters(), "2024-07-26", "plain_chat");
  return chat;
}

struct LoadedData {
  std::unique_ptr<Dataset> dataset;
  DataReport report;
};

class PrepareFixture : public testing::Test {
 protected:
  PrepareFixture() {
    options_.tokenizer = &letters();
    options_.chat = &plain_chat();
    options_.model_vocabulary_size = 257;
    options_.data.max_tokens = 16;
    options_.cache = files_.path("cache");
    options_.threads = 2;
  }

  LoadedData load() const {
    PreparedData prepared = prepare_or_open(options_);
    std::vector<std::shared_ptr<const Dataset>> files;
    for (auto& file : prepared.files) files.push_back(std::move(file));
    return {std::make_unique<CombinedDataset>(std::move(files), std::vector<double>{}, HoldOut{}),
            std::move(prepared.report)};
  }
  LoadedData load(const std::string& content, const std::string& name = "rows.jsonl") {
    options_.files = {files_.write(name, content)};
    return load();
  }

  // Returns the error text without the scratch directory.
  std::string refusal(const std::string& content, const std::string& name = "rows.jsonl") {
    try {
      load(content, name);
    } catch (const DataError& error) {
      std::string text = error.what();
      const std::string directory = files_.path("");
      for (size_t at = text.find(directory); at != std::string::npos; at = text.find(directory)) {
        text.erase(at, directory.size());
      }
      return text;
    }
    return "no error";
  }

  static Ids tokens_of(const LoadedData& data, int64_t document) {
    Ids tokens, targets;
    data.dataset->append_document(document, tokens, targets);
    return tokens;
  }
  static Ids targets_of(const LoadedData& data, int64_t document) {
    Ids tokens, targets;
    data.dataset->append_document(document, tokens, targets);
    return targets;
  }
  static std::string text_of(const Ids& ids) {
    std::vector<TokenId> known;
    for (const int64_t id : ids) {
      if (id >= 0) known.push_back(static_cast<TokenId>(id));
    }
    return letters().decode(known, /*skip_special=*/false);
  }
  // Returns the text of the document's targets.
  static std::string learned(const LoadedData& data, int64_t document) {
    return text_of(targets_of(data, document));
  }

  ScratchFiles files_;
  PrepareOptions options_;
};

}  // namespace longshore
