#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "text/tokenizers_c_strings.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// The longest published templates are about 20 KB.
constexpr Bytes kMaxTemplateBytes = 4 * kMiB;
constexpr Bytes kMaxConfigBytes = 16 * kMiB;

struct Sources {
  std::optional<std::string> ordinary, tool_use;
  std::string origin;
};

constexpr const char* kTemplatesFolder = "additional_chat_templates";

// Returns true if `text` contains `word` with no letter, digit or underscore next to it.
bool has_word(std::string_view text, std::string_view word) {
  const auto is_letter = [](char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
  };
  if (word.empty()) return false;
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !is_letter(text[at - 1]);
    if (begins && (end == text.size() || !is_letter(text[end]))) return true;
  }
  return false;
}

void take_named(const std::string& name, std::string text, Sources& sources) {
  if (name == "default") {
    sources.ordinary = std::move(text);
  } else if (name == "tool_use") {
    sources.tool_use = std::move(text);
  }
}

void require_default(const Sources& sources) {
  if (sources.ordinary) return;
  throw DataError(sources.origin +
                  ": chat_template: none of its templates is named \"default\"; choose one and "
                  "give it as a file with data.chat_template");
}

// Reads a list of named templates: {"name": "tool_use", "template": "..."}.
void take_list(const Json& list, Sources& sources) {
  for (const Json& entry : list) {
    if (!entry.is_object() || !entry.contains("name") || !entry.contains("template") ||
        !entry["name"].is_string() || !entry["template"].is_string()) {
      throw DataError(sources.origin + ": chat_template: an entry has no name and template");
    }
    take_named(entry["name"].get<std::string>(), entry["template"].get<std::string>(), sources);
  }
  require_default(sources);
}

// Reads templates from separate files, which take precedence over tokenizer_config.json.
bool take_files(const fs::path& directory, Sources& sources) {
  std::error_code ignored;
  bool any = false;
  const fs::path folder = directory / kTemplatesFolder;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() != ".jinja" || !entry.is_regular_file(ignored)) continue;
    any = true;
    sources.origin = folder.string();
    const std::string name = entry.path().stem().string();
    if (name != "default" && name != "tool_use") continue;
    take_named(name, read_whole_file(entry.path().string(), kMaxTemplateBytes), sources);
  }
  const fs::path own = directory / "chat_template.jinja";
  if (fs::exists(own, ignored)) {
    any = true;
    sources.origin = own.string();
    if (!sources.ordinary) sources.ordinary = read_whole_file(sources.origin, kMaxTemplateBytes);
  }
  if (any) require_default(sources);
  return any;
}

Sources find_sources(const fs::path& directory, const std::string& file) {
  Sources sources;
  if (!file.empty()) {
    sources.origin = file;
    sources.ordinary = read_whole_file(file, kMaxTemplateBytes);
    return sources;
  }
  if (take_files(directory, sources)) return sources;
  std::error_code ignored;
  const fs::path config_path = directory / "tokenizer_config.json";
  if (!fs::exists(config_path, ignored)) return sources;
  sources.origin = config_path.string();
  const Json config = parse_json(python_numbers(read_whole_file(sources.origin, kMaxConfigBytes)),
                                 {}, sources.origin);
  if (!config.is_object()) return sources;
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return sources;
  if (found->is_string()) {
    sources.ordinary = found->get<std::string>();
  } else if (found->is_array()) {
    take_list(*found, sources);
  } else {
    throw DataError(sources.origin + ": chat_template: expected a string");
  }
  return sources;
}

// Data sets use three names for reasoning; transformers passes it under the two below.
void name_reasoning(Json& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto found = message.find(name);
    if (found == message.end()) continue;
    Json reasoning = *found;
    if (!message.contains("thinking")) message["thinking"] = reasoning;
    message["reasoning_content"] = std::move(reasoning);
    return;
  }
}

// transformers removes null members from messages before it renders them.
Json as_templates_read(const Json& messages) {
  Json kept = Json::array();
  for (const Json& message : messages) {
    if (!message.is_object()) {
      kept.push_back(message);
      continue;
    }
    Json copy = Json::object();
    for (const auto& [key, value] : message.items()) {
      if (!value.is_null()) copy[key] = value;
    }
    name_reasoning(copy);
    kept.push_back(std::move(copy));
  }
  return kept;
}

// TemplateTag: a tag or a comment of a template, with its word and its whitespace-control signs.
struct TemplateTag {
  size_t begin = 0, end = 0;
  std::string word, open, close;
};

// Returns the next tag at or behind offset `at`.
std::optional<TemplateTag> find_tag(std::string_view source, size_t at) {
  constexpr std::string_view kSigns = "-+";
  for (; at + 1 < source.size(); ++at) {
    if (source[at] == '{' && (source[at + 1] == '%' || source[at + 1] == '#')) break;
  }
  if (at + 1 >= source.size()) return std::nullopt;
  const size_t end = source.find(source[at + 1] == '%' ? "%}" : "#}", at + 2);
  if (end == std::string_view::npos) return std::nullopt;
  TemplateTag tag{.begin = at, .end = end + 2, .word = {}, .open = {}, .close = {}};
  if (source[at + 1] == '#') return tag;  // the text of a comment is ignored
  std::string_view inside = source.substr(at + 2, end - at - 2);
  if (!inside.empty() && kSigns.find(inside.front()) != std::string_view::npos) {
    tag.open = inside.front();
    inside.remove_prefix(1);
  }
  if (!inside.empty() && kSigns.find(inside.back()) != std::string_view::npos) {
    tag.close = inside.back();
    inside.remove_suffix(1);
  }
  const size_t first = inside.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return tag;
  const size_t last = inside.find_last_not_of(" \t\r\n");
  tag.word = inside.substr(first, last + 1 - first);
  return tag;
}

// Returns true if a block sets a name. A name set in a generation block is local to the block.
bool sets_names(std::string_view source, size_t at) {
  while (const std::optional<TemplateTag> tag = find_tag(source, at)) {
    if (tag->word == "endgeneration") return false;
    if (tag->word.starts_with("set ")) return true;
    at = tag->end;
  }
  return false;
}

}  // namespace

void ChatTemplate::Free::operator()(tokc_chat* chat) const noexcept {
  tokc_chat_free(chat);
}

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate::Handle ChatTemplate::parse(const std::string& source, const Tokenizer& tokenizer,
                                         const std::string& date, const std::string& origin) {
  tokc_chat* handle = nullptr;
  tokc_string error{};
  if (tokc_chat_new(tokenizer.handle_.get(), slice_of(source), slice_of(date), &handle, &error) !=
      0) {
    throw DataError(origin + ": " + take(error));
  }
  return Handle(handle);
}

std::optional<ChatTemplate> ChatTemplate::load(const std::string& directory,
                                               const Tokenizer& tokenizer,
                                               const ChatTemplateOptions& options) {
  Sources sources = find_sources(directory, options.file);
  if (!sources.ordinary) return std::nullopt;
  std::string replaced;
  if (options.training) {
    if (sources.tool_use) {
      sources.tool_use = training_template(*sources.tool_use, sources.origin).text;
    }
    TrainingTemplate training = training_template(*sources.ordinary, sources.origin);
    sources.ordinary = std::move(training.text);
    replaced = std::move(training.name);
  }
  ChatTemplate chat = from_text(*sources.ordinary, tokenizer, options.date, sources.origin);
  if (sources.tool_use) {
    chat.tool_use_ = parse(*sources.tool_use, tokenizer, options.date, sources.origin);
    chat.fingerprint_ ^= hash64("tool_use" + *sources.tool_use);
    chat.tool_parts_ = chat.prints_parts(true);
    chat.tool_use_text_ = *sources.tool_use;
  }
  chat.replaced_ = std::move(replaced);
  return chat;
}

ChatTemplate ChatTemplate::from_text(const std::string& source, const Tokenizer& tokenizer,
                                     const std::string& date, const std::string& origin) {
  ChatTemplate chat;
  chat.text_ = source;
  chat.default_ = parse(source, tokenizer, date, origin);
  chat.fingerprint_ = hash64(chat.uses_date() ? date + source : source);
  chat.parts_ = chat.tool_parts_ = chat.prints_parts(false);
  std::string bos;
  if (tokenizer.bos()) bos = tokenizer.token_of(*tokenizer.bos()).value_or("");
  chat.unasked_opening_ = chat.find_unasked_opening(bos);
  return chat;
}

const tokc_chat* ChatTemplate::chat_for(bool with_tools) const {
  return with_tools && tool_use_ ? tool_use_.get() : default_.get();
}

// Renders a probe conversation of two words, once as strings and once as lists of parts.
bool ChatTemplate::prints_parts(bool with_tools) const {
  const auto asked = [&](bool parts) -> std::optional<std::string> {
    Json messages = Json::array();
    for (const auto& [role, word] : {std::pair("user", "wherefore"), {"assistant", "therefore"}}) {
      const Json content =
          parts ? Json::array({Json{{"type", "text"}, {"text", word}}}) : Json(word);
      messages.push_back({{"role", role}, {"content", content}});
    }
    ChatVariables variables;
    if (with_tools) variables.tools = Json::array();
    try {
      return render(messages, variables).text;
    } catch (const ChatProblem&) {
      return std::nullopt;
    }
  };
  const std::optional<std::string> joined = asked(false), parts = asked(true);
  return !joined || parts == joined;
}

// Renders probe conversations of three words. The text between an answer and the next question is
// the end of the answer plus the head of the question. The first question has the same head, so the
// end of the answer is known. Any text behind that end in a two-message rendering is an opening.
std::string ChatTemplate::find_unasked_opening(const std::string& bos) const {
  constexpr std::array<std::string_view, 3> kWords = {"wherefore", "therefore", "whither"};
  Json messages = Json::array();
  std::array<std::string, 3> texts;
  try {
    for (size_t i = 0; i < kWords.size(); ++i) {
      messages.push_back({{"role", i == 1 ? "assistant" : "user"}, {"content", kWords[i]}});
      texts[i] = render(messages, {}).text;
      if (i == 0 &&
          texts[i] != render(messages, ChatVariables{.add_generation_prompt = true}).text) {
        return {};
      }
    }
  } catch (const ChatProblem&) {
    return {};
  }
  const size_t question = texts[0].find(kWords[0]), answer = texts[1].rfind(kWords[1]);
  const size_t earlier = texts[2].rfind(kWords[1]), next = texts[2].rfind(kWords[2]);
  const size_t behind = earlier + kWords[1].size();
  if (std::max({question, answer, earlier, next}) == std::string::npos || next < behind) return {};
  std::string_view head = std::string_view(texts[0]).substr(0, question);
  // A leading bos may look like the end of an answer, so it is not part of the head.
  if (head.starts_with(bos)) head.remove_prefix(bos.size());
  const std::string_view between = std::string_view(texts[2]).substr(behind, next - behind);
  const auto [common, ignored] =
      std::mismatch(between.rbegin(), between.rend(), head.rbegin(), head.rend());
  const std::string_view end(between.begin(), common.base());
  std::string rest = texts[1].substr(answer + kWords[1].size());
  if (!rest.starts_with(end)) return {};
  rest.erase(0, end.size());
  return texts[0].ends_with(rest) ? rest : std::string();
}

std::string without_generation_marks(std::string_view source) {
  std::string out;
  size_t at = 0;
  bool scope = false;
  while (const std::optional<TemplateTag> tag = find_tag(source, at)) {
    out += source.substr(at, tag->begin - at);
    at = tag->end;
    const bool begins = tag->word == "generation", ends = tag->word == "endgeneration";
    if (!begins && !ends) {
      out += source.substr(tag->begin, tag->end - tag->begin);
      continue;
    }
    if (begins) scope = sets_names(source, at);
    // A comment has the whitespace control of a tag and opens no scope.
    const std::string opening = (scope ? "{%" : "{#") + tag->open;
    const std::string closing = tag->close + (scope ? "%}" : "#}");
    out += opening + (scope ? (begins ? " with " : " endwith ") : " ") + closing;
  }
  return out + std::string(source.substr(at));
}

bool ChatTemplate::uses_date() const {
  return tokc_chat_uses_date(default_.get()) != 0 ||
         (tool_use_ && tokc_chat_uses_date(tool_use_.get()) != 0);
}

bool ChatTemplate::names(std::string_view member) const {
  return has_word(text_, member) || has_word(tool_use_text_, member);
}

RenderedChat ChatTemplate::render(const Json& messages, const ChatVariables& variables) const {
  Json context = variables.arguments;
  context["messages"] = as_templates_read(messages);
  context["tools"] = variables.tools;
  context["add_generation_prompt"] = variables.add_generation_prompt;
  const std::string json = context.dump();
  tokc_rendered rendered{};
  tokc_string error{};
  if (tokc_chat_render(chat_for(!variables.tools.is_null()), slice_of(json), &rendered, &error) !=
      0) {
    throw ChatProblem(take(error));
  }
  RenderedChat chat;
  chat.text.assign(reinterpret_cast<const char*>(rendered.text.data), rendered.text.size);
  for (size_t i = 0; i < rendered.count; ++i) {
    chat.generated.push_back({rendered.generated[2 * i], rendered.generated[2 * i + 1]});
  }
  tokc_rendered_free(rendered);
  return chat;
}

}  // namespace longshore
