// echo server|client ADDRESS: Go's own sockets, which call the kernel without the C library.
package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
)

const (
	connections = 16
	length      = 1 << 20
)

func main() {
	if os.Args[1] == "server" {
		fail(serve(os.Args[2]))
		return
	}
	ended := make(chan error)
	for number := int64(0); number < connections; number++ {
		go func(seed int64) { ended <- ask(os.Args[2], seed) }(number)
	}
	for number := 0; number < connections; number++ {
		fail(<-ended)
	}
	fmt.Println("right", connections)
}

func fail(problem error) {
	if problem != nil {
		fmt.Fprintln(os.Stderr, problem)
		os.Exit(1)
	}
}

func serve(address string) error {
	listener, problem := net.Listen("tcp", address)
	if problem != nil {
		return problem
	}
	for {
		connection, problem := listener.Accept()
		if problem != nil {
			return problem
		}
		go func() {
			io.Copy(connection, connection)
			connection.Close()
		}()
	}
}

func ask(address string, seed int64) error {
	connection, problem := net.Dial("tcp", address)
	if problem != nil {
		return problem
	}
	sent := make([]byte, length)
	rand.New(rand.NewSource(seed)).Read(sent)
	go func() {
		connection.Write(sent)
		connection.(*net.TCPConn).CloseWrite()
	}()
	got, problem := io.ReadAll(connection)
	if problem == nil && !bytes.Equal(sent, got) {
		problem = fmt.Errorf("%d bytes came back as %d others", len(sent), len(got))
	}
	return problem
}
