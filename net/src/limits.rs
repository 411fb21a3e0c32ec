//! What a listener allows its connections. The defaults are those of `protocol::limits`; an operator may set some.

use std::time::Duration;

use protocol::limits;

/// Limits of one listener's connections on one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections of the core.
    pub connections_max: usize,
    /// Connections from one address.
    pub connections_per_address_max: usize,
    /// Requests of one connection that wait for their reply; then its socket isn't read.
    pub requests_in_flight_max: usize,
    /// Bytes of replies of one connection that are not sent yet, or may still come; then its socket isn't read.
    pub reply_bytes_max: usize,
    /// A connection without a complete first request is closed after this.
    pub first_request_timeout: Duration,
    /// A frame that has begun must end within this.
    pub partial_frame_timeout: Duration,
    /// One send (at most [`limits::SEND_BYTES_MAX`]) must end within this.
    pub send_timeout: Duration,
    /// A connection without requests is closed after this.
    pub idle_timeout: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits {
            connections_max: limits::CONNECTIONS_PER_CORE_MAX,
            connections_per_address_max: limits::CONNECTIONS_PER_ADDRESS_MAX,
            requests_in_flight_max: limits::REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX,
            reply_bytes_max: limits::REPLY_BYTES_PER_CONNECTION_MAX,
            first_request_timeout: Duration::from_millis(limits::FIRST_REQUEST_TIMEOUT_MS),
            partial_frame_timeout: Duration::from_millis(limits::PARTIAL_FRAME_TIMEOUT_MS),
            send_timeout: Duration::from_millis(limits::SEND_TIMEOUT_MS),
            idle_timeout: Duration::from_millis(limits::CONNECTION_IDLE_TIMEOUT_MS),
        }
    }
}
