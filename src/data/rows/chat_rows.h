// The row formats with answers, which are conversations and prompts with completions.
// Internal to src/data, apart from read_conversation, with which the trainer reads conversations
// that the model is to answer; the formats are immutable, any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/rows/row_format.h"

namespace longshore {

// Conversation: a row in the form that chat templates read.
struct Conversation {
  Json messages = Json::array();    // role, content, tool_calls, ...
  Json tools = nullptr;             // an array, or null
  Json arguments = Json::object();  // chat_template_kwargs of the row
};

// Returns the member with a row's messages: messages, conversations, conversation, or chosen for a
// preference pair. Returns "messages" if there is none.
std::string name_of_messages(const Json& row, const RowFormatOptions& options);

// Reads {"messages": [...], "tools": [...]} in OpenAI's form, or {"conversations": [{"from",
// "value"}]} in ShareGPT's. A RowProblem names the faulty member. `notes` get the members of
// messages that neither this code nor the template reads.
Conversation read_conversation(const Json& row, const RowFormatOptions& options,
                               RowNotes* notes = nullptr);

// Returns true for a role of messages, also by its name in ShareGPT's form.
bool is_role(const std::string& name);

// Returns true if the message is the assistant's.
bool is_answer(const Json& message);

// Returns true if a message of the list has this content.
bool is_message_of(const Json& messages, const std::string& content);

// Returns the members that a row may have beside its messages.
std::vector<std::string> members_of_conversations(const RowFormatOptions& options);

// Returns the samples of a conversation. Throws RowProblem if it cannot be trained as `mask` says.
std::vector<Document> encode_conversation(const Conversation& conversation,
                                          const RowFormatOptions& options, ChatMask mask,
                                          RowNotes* notes);

// Returns whether the texts of a prompt and its answer become messages of a conversation: with
// data.prompt_template = "chat", and with "auto" if there is a chat template and the row has
// Alpaca's names, which `instruction` says. These rows of "auto" are noted.
bool by_chat_template(const RowFormatOptions& options, bool instruction, RowNotes* notes);

// Returns the messages of a row's earlier turns as LLaMA-Factory has them beside an instruction:
// "history": [[question, answer], ...]. Empty without any.
Json earlier_turns(const Json& row, const RowFormatOptions& options);

// Throws RowProblem for a row with earlier turns where a prompt is written as text.
void refuse_earlier_turns(const Json& row, const RowFormatOptions& options);

// Throws RowProblem if the value is a list or an object that holds no messages.
void check_messages(const Json& value, const std::string& key);

// Returns the messages of a member that is a list, an object of lists or one message.
Json as_list(const Json& value, const std::string& key);

// Returns the name of the member with a row's judgement of its answer: label, or kto_tag as
// LLaMA-Factory has it. Empty if the row has none.
std::string name_of_judgement(const Json& row, const RowFormatOptions& options);

// Returns a judgement: true or false, also as 1 or 0 and as texts. Throws RowProblem for others.
bool read_judgement(const Json& value, const std::string& key);

// Returns the text of a prompt by data.prompt_template, which is none of the chat template.
// `instruction`: the row has Alpaca's names.
std::string fill_prompt(const std::string& prompt, const std::string& context, bool instruction,
                        const RowFormatOptions& options);

std::unique_ptr<RowFormat> make_messages_format(const RowFormatOptions& options);
std::unique_ptr<RowFormat> make_prompt_format(const RowFormatOptions& options);

// MessageTexts: members that hold messages as JSON text. Internal to src/data; plain functions, any
// thread.

// Returns the row with messages in place of prompts and answers that hold them as JSON text;
// nullopt if there are none, or if the row is none of messages: its prompt or another answer is
// plain text. Notes either. Throws RowProblem if they are Python literals.
std::optional<Json> with_parsed_messages(const Json& row, const RowFormatOptions& options,
                                         RowNotes* notes);

// Returns true if the value is a text that holds messages as JSON, or as a Python literal.
bool is_text_of_messages(const Json& value);

// Returns a member with messages as a list: of itself, of its JSON text, of the JSON texts in it,
// or of one object of lists. Other values are returned as they are.
Json messages_of_member(const Json& member, const std::string& name, RowNotes* notes);

// Returns what a text that begins as JSON holds, and other values as they are. A RowProblem names
// the place and the reason.
Json parsed_if_json(const Json& value, const std::string& place);

// PreferenceRows: the row formats with answers that people judged: pairs of a chosen and a rejected
// one, and single answers with a label. Internal to src/data; the formats are immutable, any
// thread.

// Returns true if the row has a chosen and a rejected answer, as texts, messages or token ids.
bool holds_pair(const Json& row, const RowFormatOptions& options);

// Returns true if the row has one answer with a label, as text, messages or token ids.
bool holds_judged_answer(const Json& row, const RowFormatOptions& options);

// Every row gives a document for each answer, behind the prompt: with `paired` those of the chosen
// and of the rejected one. Throws DataError if data.mask selects other tokens than the answers'.
std::unique_ptr<RowFormat> make_preference_format(const RowFormatOptions& options, bool paired);

}  // namespace longshore
