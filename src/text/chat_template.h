// ChatTemplate: renders conversations exactly as transformers' apply_chat_template does for a model
// directory. Immutable after loading; any thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

struct tokc_chat;

namespace longshore {

// ChatProblem: a fault of a conversation that the template or the mask reports. The caller adds the
// row.
class ChatProblem : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// ChatVariables: the variables of a template other than the messages.
struct ChatVariables {
  Json tools = nullptr;  // an array, or null
  bool add_generation_prompt = false;
  Json arguments = Json::object();  // more names that the template may read
};

struct RenderedChat {
  std::string text;
  std::vector<TextSpan> generated;  // text ranges of the {% generation %} blocks, in order
};

struct ChatTemplateOptions {
  std::string file{};               // a Jinja file in place of the directory's; empty: none
  std::string date = "2024-07-26";  // the date that strftime_now returns
  bool training = false;            // use the training template (TrainingTemplate)
};

class ChatTemplate {
 public:
  // Finds the template as transformers does: chat_template.jinja and
  // additional_chat_templates/NAME.jinja, else chat_template in tokenizer_config.json, which may be
  // a list of named ones; nullopt if there is none. Special tokens get their names in `tokenizer`.
  // Throws DataError if a template cannot be parsed, or if options.training is set and no training
  // template is known.
  static std::optional<ChatTemplate> load(const std::string& directory, const Tokenizer& tokenizer,
                                          const ChatTemplateOptions& options);
  // `origin` replaces the file in error texts.
  static ChatTemplate from_text(const std::string& source, const Tokenizer& tokenizer,
                                const std::string& date, const std::string& origin);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Throws ChatProblem if the template refuses the conversation.
  RenderedChat render(const Json& messages, const ChatVariables& variables) const;
  // Returns true if the template writes the texts of a content that is a list of parts. Many
  // templates print the list as Python does, omit it, or fail; they need the joined text.
  bool reads_parts(bool with_tools) const { return with_tools ? tool_parts_ : parts_; }
  // Returns the opening of an answer that the template appends to every text, even without a prompt
  // for an answer. Empty for most templates; Llama 3's first template has one.
  const std::string& unasked_opening() const { return unasked_opening_; }
  bool uses_date() const;
  // Returns the template in use: as found, or the training template that replaces it.
  const std::string& text() const { return text_; }
  // Returns true if the template's text contains the member's name as a word.
  bool names(std::string_view member) const;
  // Returns the name of the published template that was replaced; empty if none was.
  const std::string& replaced() const { return replaced_; }
  // Returns a hash of the template's text, and of the date if the template reads it.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct Free {
    void operator()(tokc_chat* chat) const noexcept;
  };
  using Handle = std::unique_ptr<tokc_chat, Free>;
  ChatTemplate() = default;
  static Handle parse(const std::string& source, const Tokenizer& tokenizer,
                      const std::string& date, const std::string& origin);
  const tokc_chat* chat_for(bool with_tools) const;
  bool prints_parts(bool with_tools) const;
  std::string find_unasked_opening(const std::string& bos) const;

  Handle default_;
  Handle tool_use_;  // empty: the default is used
  bool parts_ = true, tool_parts_ = true;
  std::string unasked_opening_, text_, replaced_;
  std::string tool_use_text_;
  uint64_t fingerprint_ = 0;
};

// Returns the template without its {% generation %} tags, which only transformers knows. The result
// writes the same texts, with the same whitespace and scopes.
std::string without_generation_marks(std::string_view source);

// TrainingTemplate: replaces the chat templates of some published models, so that one sample trains
// all answers of a conversation. It writes every answer, with its thought, as the model wrote it
// when asked, inside {% generation %} blocks. It is made by edits of the published text; the rest
// is unchanged. Plain functions.

struct TrainingTemplate {
  std::string name;  // of the template that it replaces
  std::string text;
};

// Throws DataError if the text is unknown; `origin` replaces the file in the error text.
TrainingTemplate training_template(std::string_view published, const std::string& origin);

}  // namespace longshore
