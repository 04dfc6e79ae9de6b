"""A kept run as tracks of spans, for the viewers that people use: Perfetto's protobuf and Chrome's JSON."""
