#include "text_stream.hpp"

#include <utility>

namespace aner {

TextStream::TextStream(std::vector<std::string> stops) : matcher_(std::move(stops)) {}

StreamedText TextStream::push(std::string_view piece) {
    StreamedText streamed;
    decoded_.clear();
    decoder_.push(piece, decoded_);
    streamed.stopped = matcher_.push(decoded_, streamed.text);
    return streamed;
}

StreamedText TextStream::finish() {
    StreamedText streamed;
    decoded_.clear();
    decoder_.finish(decoded_);
    streamed.stopped = matcher_.push(decoded_, streamed.text);
    matcher_.finish(streamed.text);
    return streamed;
}

}  // namespace aner
